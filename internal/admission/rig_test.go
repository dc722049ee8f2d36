// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

var chatOfM = target.Target{Model: "m", Kind: target.Chat}

// rig is a capacity under a policy, with the registry that it looks at.
type rig struct {
	*Capacity
	t        require.TestingT
	ctx      context.Context
	registry *agentreg.Registry
	policy   *policy.Policy
	changes  atomic.Int32 // how often the registry said that chatOfM changed
}

// newRig needs a bubble. Its agents leave when ctx ends.
func newRig(ctx context.Context, t require.TestingT, text string) *rig {
	r := &rig{t: t, ctx: ctx}
	r.setPolicy(text)
	r.registry = agentreg.New(agentreg.Options{
		Liveness: 24 * time.Hour,
		OnChange: func(target target.Target) {
			if target == chatOfM {
				r.changes.Add(1)
			}
		},
	})
	r.Capacity = NewCapacity(r.registry, func() *policy.Policy { return r.policy })
	return r
}

// bubble runs f with a rig under a policy for the model m.
func bubble(t *testing.T, text string, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(newRig(t.Context(), t, text))
	})
}

// setPolicy gives m this policy; empty: the file does not name it.
func (r *rig) setPolicy(text string) {
	if text != "" {
		text = "m: " + text
	}
	p, err := policy.Parse([]byte("models: {" + text + "}"))
	require.NoError(r.t, err)
	r.policy = p
}

// pass lets d go by, with everything that it causes.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// join registers an agent that serves m.
func (r *rig) join(id, region string, slots uint32, kinds ...string) *agentregtest.Agent {
	if len(kinds) == 0 {
		kinds = []string{"chat"}
	}
	return agentregtest.Join(r.ctx, r.registry, id, region, slots, []string{"m"}, kinds)
}

// request is one for chatOfM with this footprint and without a key.
func (r *rig) request(tokens int64) *Attempts { return r.of(access.Anonymous(), tokens) }

// of is a request of a key.
func (r *rig) of(key *access.Key, tokens int64) *Attempts {
	a := r.Attempts(chatOfM, key, tokens)
	return &a
}

// take gives a request room and a slot, and says on which agent.
func (r *rig) take(q *Attempts) (*Grant, string) {
	room, err := q.Admit(false)
	require.NoError(r.t, err)
	require.NotNil(r.t, room)
	g, took := q.Take(room)
	require.Equal(r.t, holdstate.Taken, took)
	return g.(*Grant), g.(*Grant).Agent().ID
}

// took is what Take gives a request that has room, and gives it back.
func (r *rig) took(q *Attempts) holdstate.TakeResult {
	g, took := q.Take(unlimited{})
	if g != nil {
		g.Release()
	}
	return took
}

// look returns what Admit and Take would give at this moment: whether the gate has room,
// whether a slot is free, and the error of Admit.
func look(a *Attempts) (room, slot bool, err error) {
	claim := a.DryRun()
	r, err := claim.Admit(false)
	if err != nil {
		return false, false, err
	}
	_, took := claim.Take(r)
	return r != nil, took == holdstate.Taken, nil
}
