// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
)

// The audit log must say what the metric of holds has counted.
func TestARefusedHoldHasItsOutcome(t *testing.T) {
	t.Parallel()
	bubble(t, setup{placements: rigMap, limits: holdstate.Limits{PerModel: 1}}, func(r *rig) {
		decide := func(patience time.Duration) extproc.Decision {
			q := chat("m")
			q.Patience = patience
			return r.calls("").Decide(q)
		}
		require.Equal(t, holdstate.OutcomeExpired, decide(0).Outcome)
		require.Equal(t, 1, r.ended(holdstate.OutcomeExpired))
		waits := decide(-1).Waiter
		require.Equal(t, holdstate.OutcomeFull, decide(-1).Outcome)
		require.Equal(t, 1, r.ended(holdstate.OutcomeFull))
		r.o.Machine.Fail("m", "it was a test")
		require.Equal(t, holdstate.Pending, decide(-1).Outcome, "it is not counted")
		waits.Report(holdstate.Leave)
	})
}

// Envoy carried it in between, and its replica died.
func TestARequestThatIsHeldAgainIsCountedOnce(t *testing.T) {
	t.Parallel()
	bubble(t, setup{placements: rigMap, limits: holdstate.Limits{PerModel: 1}}, func(r *rig) {
		call := r.calls("")
		hold := func() extproc.Decision { return call.Decide(chat("m")) }
		hold().Waiter.Report(holdstate.Leave)
		require.Equal(t, 1, r.ended(holdstate.OutcomeDisconnected))
		again := hold().Waiter
		require.Equal(t, 1, r.o.Machine.Demand("m"))
		require.Equal(t, holdstate.OutcomeDisconnected, again.Report(holdstate.Leave).Outcome)
		other := r.calls("").Decide(chat("m")).Waiter
		require.Equal(t, 503, hold().Refusal.Status)
		other.Report(holdstate.Leave)
		require.Equal(t, []int{2, 0}, []int{r.ended(holdstate.OutcomeDisconnected), r.ended(holdstate.OutcomeFull)}, "the other's is the second")
	})
}

// A request that an earlier process authenticated records its failed replicas too.
func TestARequestWhoseReplicaFailedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(r *rig) extproc.Call{
		"authenticated": func(r *rig) extproc.Call { return r.calls("") }, "resumed": func(r *rig) extproc.Call { return r.Resume() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, setup{limits: holdstate.Limits{QueueDepth: 1}}, func(r *rig) {
				r.join("a", "eu", 1, "m")
				r.join("b", "eu", 1, "m")
				failing := begin(r)
				first, second := failing.Decide(chat("m")), r.calls("").Decide(chat("m"))
				later := r.calls("").Decide(chat("m"))
				require.NotNil(t, later.Waiter)
				require.NotNil(t, r.calls("").Decide(chat("m")).Refusal, "the queue is full")
				first.Grant.Failed("it was a test", true)
				first.Grant.Release()
				again := failing.Decide(chat("m"))
				require.NotNil(t, again.Waiter, "it was admitted before")
				second.Grant.Release()
				require.Equal(t, holdstate.Admitted, later.Waiter.Status().State, "it came later")
				s := again.Waiter.Report(holdstate.Done)
				require.NotNil(t, s.Grant)
				s.Grant.Release()
				later.Waiter.Report(holdstate.Done).Grant.Release()
			})
		})
	}
}

// The trace costs nothing without explain: these are the grant and its slot,
// the redirect and its location, and the refusal with its text.
func TestADecisionAllocatesWhatItReturns(t *testing.T) { //nolint:paralleltest // testing.AllocsPerRun counts every goroutine's allocations
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t.Context(), t, setup{placements: explainMap})
		r.join("a", "", 4, "m")
		c := r.calls("")
		for model, want := range map[string]float64{"m": 2, "far": 2, "none": 3} {
			q := chat(model)
			allocated := testing.AllocsPerRun(100, func() { giveBack(c.Decide(q)) })
			require.LessOrEqual(t, allocated, want, model)
		}
	})
}
