// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

func onlyQwen(t target.Target) bool { return t == qwen }

func TestReconcileEndsWhatMayNotBeHeld(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	gone, kept := r.hold(t, Request{Target: llama, Bytes: 5}), r.hold(t, Request{Target: qwen})
	served := r.hold(t, Request{Target: embed})
	replica := r.up(embed, 0)
	r.Reconcile(onlyQwen)
	require.Equal(t, Status{State: Ended, Outcome: OutcomeRemoved, Seq: gone.seq}, gone.Status())
	require.Equal(t, []State{Held, Admitted}, states(kept, served), "a replica serves it, with a placement or without")
	require.EqualValues(t, 0, r.bytes)

	replica.free++
	r.Update(embed)
	r.finish(served)
	kept.Report(Leave)
	require.Equal(t, map[Outcome]int{OutcomeRemoved: 1, OutcomeReleased: 1, OutcomeDisconnected: 1}, r.outcomes)
	r.requireAtRest(t)
}

// TestARemovedPlacementEndsItsWaitersWhenTheReplicaLeaves is for waiters that were not held
// when the map changed.
func TestARemovedPlacementEndsItsWaitersWhenTheReplicaLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	granted, released, other := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: qwen})
	replica := r.up(llama, 1)
	also := r.up(qwen, 0)
	r.Reconcile(onlyQwen)
	require.Equal(t, []State{Granted, Admitted}, states(granted, released))
	r.down(llama, replica)
	r.down(qwen, also)
	require.Equal(t, OutcomeRemoved, released.Status().Outcome)
	grant := granted.Status().Grant
	s := granted.Report(Back)
	require.Equal(t, OutcomeRemoved, s.Outcome)
	require.Nil(t, s.Grant)
	grant.Release()
	require.Equal(t, Held, other.Status().State)
	other.Report(Leave)
	r.requireAtRest(t)
}

func TestDrainEndsEveryWaiterAndRefusesNewOnes(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	granted, released := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
	replica := r.up(llama, 1)
	queued := r.queue(t, Request{Target: llama})
	held := r.hold(t, Request{Target: qwen})
	r.Drain()
	for _, w := range []*Waiter{held, released, queued} {
		require.Equal(t, OutcomeDraining, w.Status().Outcome)
	}
	require.Equal(t, Granted, granted.Status().State, "the relay finishes")
	require.Equal(t, map[Outcome]int{OutcomeDraining: 2}, r.outcomes, "an ordinary request was no hold")

	for _, late := range []Event{Expire, Leave, Done, Back} {
		require.Equal(t, OutcomeDraining, held.Report(late).Outcome, "an end that comes late changes nothing")
	}

	_, err := r.Hold(Request{Target: qwen})
	require.ErrorIs(t, err, ErrDraining)
	_, err = r.Queue(Request{Target: llama})
	require.ErrorIs(t, err, ErrDraining)
	require.Equal(t, map[Outcome]int{OutcomeDraining: 2}, r.outcomes)

	// Its engine dies in the drain: another slot if one is free, else the end.
	replica.free++
	old := granted.Status().Grant
	s := granted.Report(Back)
	require.Equal(t, Granted, s.State)
	old.Release()
	r.down(llama, replica)
	old = s.Grant
	require.Equal(t, OutcomeDraining, granted.Report(Back).Outcome)
	old.Release()
	require.Equal(t, map[Outcome]int{OutcomeDraining: 3}, r.outcomes)
	r.requireAtRest(t)
}

// Clients that were sent nothing yet can try another router. The others wait on, and are
// served here.
func TestDrainLeavesWaitersWhoseAnswerHasBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide, Linger: time.Minute})
		begun, quiet := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
		late, other := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: qwen})
		for _, w := range []*Waiter{begun, late, other} {
			require.True(t, w.Begin())
		}
		r.Drain()
		require.Equal(t, OutcomeDraining, quiet.Status().Outcome)
		require.False(t, quiet.Begin(), "it has ended")
		require.Equal(t, []State{Held, Held, Held}, states(begun, late, other))
		require.Equal(t, []int{2, 1}, []int{r.Demand("llama"), r.Demand("qwen")}, "the demand stays visible")

		replica := r.up(llama, 1)
		require.Equal(t, []State{Granted, Admitted}, states(begun, late))
		old := begun.Status().Grant
		r.down(llama, replica)
		require.Equal(t, Held, begun.Report(Back).State, "its engine has died: it is held again")
		old.Release()

		r.EndAll()
		for _, w := range []*Waiter{begun, late, other} {
			require.Equal(t, OutcomeDraining, w.Status().Outcome)
		}
		require.Equal(t, map[Outcome]int{OutcomeDraining: 4}, r.outcomes)
		require.True(t, r.Wanted("llama"), "its clients may be at another router in a moment")
		pass(time.Minute)
		r.requireAtRest(t)
	})
}

func TestAFailedWakeEndsTheWaitersOfNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide, Cooldown: time.Minute, Linger: time.Second})
		held, other := r.hold(t, Request{Target: llama, Bytes: 7}), r.hold(t, Request{Target: qwen})
		also := r.hold(t, Request{Target: embed})
		replica := r.up(embed, 0)
		r.Fail("llama", "no GPU left")
		require.Equal(t, Status{State: Ended, Outcome: OutcomeWakeFailed, Reason: "no GPU left", Seq: held.seq}, held.Status())
		require.Equal(t, Held, other.Status().State, "another model")
		require.Equal(t, Status{State: Admitted, Seq: also.seq}, also.Status(), "a replica serves this kind")
		replica.free++
		r.Update(embed)
		r.finish(also)
		require.False(t, r.Wanted("llama"))

		for _, after := range []time.Duration{0, time.Minute - 1} {
			pass(after)
			_, err := r.Hold(Request{Target: llama})
			var failed *FailedError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "no GPU left", failed.Reason)
			require.EqualError(t, err, "the wake failed: no GPU left")
		}
		pass(1)
		again := r.hold(t, Request{Target: llama})
		require.Equal(t, map[Outcome]int{OutcomeWakeFailed: 1, OutcomeReleased: 1}, r.outcomes)
		again.Report(Leave)
		other.Report(Leave)
		pass(time.Second)
		r.requireAtRest(t)
	})
}

func TestAFailedWakeIsRememberedWithoutWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide, Cooldown: time.Minute})
		r.Fail("llama", "first")
		pass(30 * time.Second)
		r.Fail("llama", "second")
		pass(time.Minute - 1)
		_, err := r.Hold(Request{Target: llama})
		require.EqualError(t, err, "the wake failed: second")
		pass(1)
		require.Empty(t, r.wanted("llama"))
		r.requireAtRest(t) // forgotten without anybody asking
	})
}

func TestAFailedWakeWithoutCooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide})
		w := r.hold(t, Request{Target: llama})
		r.Fail("llama", "no")
		require.Equal(t, OutcomeWakeFailed, w.Status().Outcome)
		r.hold(t, Request{Target: llama}).Report(Leave)
		pass(1)
		r.requireAtRest(t)
	})
}
