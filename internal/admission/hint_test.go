// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/hint"
)

// hinted is a request that may be sent only to the engines of these agents.
func (r *rig) hinted(agents ...string) *Attempts {
	q := r.request(0)
	q.Hint = &hint.Hint{}
	for _, id := range agents {
		q.Hint.Add(agentregtest.AddressOf(id))
	}
	return q
}

// picked returns the agents whose addresses a gateway is told.
func picked(g *Grant) (agents string) {
	for _, address := range g.Picked(3) {
		for id := 'a'; id <= 'z'; id++ {
			if agentregtest.AddressOf(string(id)) == address {
				agents += string(id)
			}
		}
	}
	return agents
}

func TestAHintRestrictsTheReplicas(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(r *rig) {
		t := r.t
		r.join("a", "eu", 1)
		r.join("b", "eu", 1)
		require.True(t, r.request(0).Hinted(), "no hint")
		require.True(t, r.hinted("b").Hinted())
		require.False(t, r.hinted("c").Hinted())
		require.False(t, r.hinted().Hinted())
		require.Equal(t, holdstate.Unfit, r.took(r.hinted("c")), "others may have the slots")
		g, on := r.take(r.hinted("b", "c"))
		require.Equal(t, "b", on)
		require.Equal(t, holdstate.Unfit, r.took(r.hinted("b")), "it is full, and a is not for this request")
		require.True(t, r.hinted("b").Hinted(), "a full replica is one")
		_, on = r.take(r.request(0))
		require.Equal(t, "a", on)
		require.Equal(t, holdstate.Full, r.took(r.hinted("b")))
		room, slot, err := look(r.hinted("b"))
		require.NoError(t, err)
		require.True(t, room)
		require.False(t, slot)
		g.Release()
		_, slot, err = look(r.hinted("b"))
		require.NoError(t, err)
		require.True(t, slot)
	})
}

func TestAHintAndThePolicysSteps(t *testing.T) {
	t.Parallel()
	bubble(t, "{steps: [{name: near, match: {region: eu}}, {name: far, match: {region: us}}]}", func(r *rig) {
		t := r.t
		r.join("e", "eu", 1)
		r.join("u", "us", 1)
		r.join("x", "asia", 1)
		_, on := r.take(r.hinted("u"))
		require.Equal(t, "u", on, "the first step has no replica for it")
		require.True(t, r.hinted("u").Hinted())
		require.False(t, r.hinted("x").Hinted(), "no step has it")
	})
}

func TestAGatewayIsToldOtherReplicas(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(r *rig) {
		t := r.t
		r.join("a", "eu", 4)
		first, on := r.take(r.request(0))
		require.Equal(t, "a", on)
		require.Equal(t, "a", picked(first), "there is no other")
		require.Len(t, first.Picked(1), 1)
		b := r.join("b", "eu", 4)
		r.join("c", "eu", 4)
		r.join("d", "eu", 4)
		g, on := r.take(r.hinted("c"))
		require.Equal(t, "c", on)
		require.Equal(t, "c", picked(g), "its hint has no other")
		require.Equal(t, "abd", picked(first), "c has a request")
		require.Len(t, first.Picked(1), 1)
		require.Len(t, first.Picked(2), 2)
		b.Report(pb.State_STATE_ASLEEP)
		require.Equal(t, "adc", picked(first))
		q := r.request(0)
		g, on = r.take(q)
		require.Equal(t, "d", on)
		g.Failed("died", true)
		g.Release()
		g, _ = r.take(q)
		require.NotContains(t, picked(g), "d", "it has just died under this request")
	})
	bubble(t, nearThenAny, func(r *rig) {
		t := r.t
		r.join("x", "asia", 4)
		r.join("u", "us", 4)
		r.join("e", "eu", 4)
		g, on := r.take(r.request(0))
		require.Equal(t, "e", on)
		require.Equal(t, "eux", picked(g), "in the order of the steps")
	})
}
