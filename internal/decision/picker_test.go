// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/hint"
	"github.com/holdgate/holdgate/internal/policy"
)

// hinted is a request for m that a gateway restricts to the engines of these agents.
func hinted(agents ...string) *extproc.Request {
	q := chat("m")
	q.Hint = &hint.Hint{}
	for _, id := range agents {
		q.Hint.Add(agentregtest.AddressOf(id))
	}
	return q
}

func TestAHintDecidesAmongReplicasThatServe(t *testing.T) {
	t.Parallel()
	bubble(t, setup{Destination: policy.Endpoint, Fallbacks: 2, placements: rigMap, keys: oneKey(", quota: {requests_per_minute: 1}")}, func(r *rig) {
		t := r.t
		r.join("a", "eu", 1, "m")
		r.join("b", "eu", 1, "m")
		for _, q := range []*extproc.Request{hinted("c"), hinted()} {
			d := r.calls(testKey).Decide(q)
			require.NotNil(t, d.Refusal)
			require.Equal(t, 503, d.Refusal.Status)
			require.Equal(t, "no_capacity", d.Refusal.Code)
		}
		c := r.calls(testKey)
		d := c.Decide(hinted("b", "c"))
		require.NotNil(t, d.Grant, "those that were refused cost no quota")
		require.Equal(t, "b", d.Grant.Replica().ID)
		require.Equal(t, agentregtest.AddressOf("b"), c.Picked(d.Grant), "a is not in the hint")
		require.Equal(t, agentregtest.AddressOf("b")+","+agentregtest.AddressOf("a"), c.Picked(d.Grant), "it is forgotten once it was used")
		d.Grant.Release()
	})
}

// A waiter for a replica in its hint gets no other, and others do not wait for it.
func TestAHintHoldsForThoseWhoWait(t *testing.T) {
	t.Parallel()
	bubble(t, setup{Destination: policy.Endpoint, limits: holdstate.Limits{QueueDepth: 10}}, func(r *rig) {
		t := r.t
		r.join("a", "eu", 1, "m")
		first := r.calls("").Decide(chat("m"))
		require.NotNil(t, first.Grant)
		waits := r.calls("").Decide(hinted("a"))
		require.NotNil(t, waits.Waiter)
		require.False(t, waits.Held)
		r.join("b", "eu", 1, "m")
		pass(0)
		require.Equal(t, holdstate.Admitted, waits.Waiter.Status().State, "b is not for it")
		other := r.calls("").Decide(chat("m"))
		pass(0)
		require.NotNil(t, other.Waiter)
		require.Equal(t, "b", other.Waiter.Status().Grant.Replica().ID)
		first.Grant.Release()
		pass(0)
		require.Equal(t, "a", waits.Waiter.Status().Grant.Replica().ID)
		for _, d := range []extproc.Decision{waits, other} {
			d.Waiter.Status().Grant.Release()
			d.Waiter.Report(holdstate.Done)
		}
	})
}

// While the model sleeps, a gateway has no endpoint that it could name.
func TestAHintDoesNotEndAHold(t *testing.T) {
	t.Parallel()
	bubble(t, setup{Destination: policy.Endpoint, placements: rigMap}, func(r *rig) {
		t := r.t
		c := r.calls("")
		d := c.Decide(hinted())
		require.True(t, d.Held)
		r.join("a", "eu", 1, "m")
		pass(0)
		s := d.Waiter.Status()
		require.Equal(t, holdstate.Granted, s.State)
		require.Equal(t, agentregtest.AddressOf("a"), c.Picked(s.Grant))
		s.Grant.Release()
		d.Waiter.Report(holdstate.Done)
	})
}
