// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

// gated is a rig whose gate for llama has this budget.
func gated(budget int, o Options) *rig {
	r := newRig(o)
	r.slots.budgets[llama] = budget
	return r
}

func TestReleasedRequestsPassTheGateInOrder(t *testing.T) {
	t.Parallel()
	r := gated(3, Options{Limits: wide})
	a1, a2 := r.hold(t, Request{Target: llama, Key: "a"}), r.hold(t, Request{Target: llama, Key: "a"})
	b, large := r.hold(t, Request{Target: llama, Key: "b"}), r.hold(t, Request{Target: llama, Key: "c", Claim: weight(2)})
	small := r.hold(t, Request{Target: llama, Key: "d"})
	require.Zero(t, r.slots.used[llama], "nothing is reserved for a model that sleeps")
	replica := r.up(llama, 0)
	require.Equal(t, []State{Admitted, Admitted, Released}, states(a1, b, large))
	require.Equal(t, Released, small.Status().State, "nobody overtakes the one that does not fit")
	require.Equal(t, Released, a2.Status().State)
	newcomer := r.queue(t, Request{Target: llama, Key: "e"})
	require.Equal(t, Released, newcomer.Status().State)

	replica.free = 2
	r.Update(llama)
	require.Equal(t, []State{Granted, Granted, Released}, states(a1, b, large))
	r.finish(a1)
	require.Equal(t, []State{Granted, Released, Released}, states(large, small, a2))
	r.finish(b)
	require.Equal(t, []State{Granted, Released, Released}, states(small, a2, newcomer))
	r.finish(large)
	require.Equal(t, []State{Granted, Admitted}, states(a2, newcomer), "two units were free")
	r.finish(small)
	r.finish(a2)
	r.finish(newcomer)
	r.requireAtRest(t)
}

func TestWhatIsLargerThanTheGateEndsAtOnce(t *testing.T) {
	t.Parallel()
	r := gated(2, Options{Limits: wide})
	first := r.hold(t, Request{Target: llama, Claim: weight(2)})
	waits := r.hold(t, Request{Target: llama})
	large := r.hold(t, Request{Target: llama, Claim: weight(3)})
	r.up(llama, 0)
	require.Equal(t, []State{Admitted, Released}, states(first, waits))
	require.Equal(t, Status{State: Ended, Outcome: OutcomeReleased, Err: errTooLarge, Seq: large.seq}, large.Status(), "though others stand before it")
	require.Equal(t, []error{errTooLarge}, r.refused)
	first.Report(Leave)
	require.Equal(t, Admitted, waits.Status().State, "what one that left had reserved is free")
	waits.Report(Leave)
	r.requireAtRest(t)
}

// A slot that became free must not try the gate for thousands of waiters.
func TestAFreeSlotCostsNoLookAtEverybody(t *testing.T) {
	t.Parallel()
	r := gated(1, Options{Limits: wide})
	const waiters = 1000
	var all []*Waiter
	for range waiters {
		all = append(all, r.hold(t, Request{Target: llama}))
	}
	r.up(llama, 1)
	require.Equal(t, waiters, r.slots.asked, "the release looks at all: some may be larger than the gate")
	for _, w := range all {
		require.Equal(t, Granted, w.Status().State)
		r.finish(w)
	}
	require.Less(t, r.slots.asked, 4*waiters)
	r.requireAtRest(t)
}

func TestEachSecondEverybodyIsLookedAt(t *testing.T) {
	t.Parallel()
	r := gated(2, Options{Limits: wide})
	first, waits, large := r.hold(t, Request{Target: llama, Claim: weight(2)}), r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama, Claim: weight(2)})
	r.up(llama, 0)
	r.slots.budgets[llama] = 1
	r.UpdateAll()
	require.Equal(t, []State{Admitted, Released, Ended}, states(first, waits, large))
	first.Report(Leave)
	waits.Report(Leave)
	r.requireAtRest(t)
}

// Waiters behind one that did not fit go on when that one ends.
func TestWhoGivesUpItsWaitForRoomLetsOthersThrough(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]Event{"its budget or its park ends": Expire, "its client leaves": Leave, "its key is revoked": Revoke} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gated(2, Options{Limits: wide})
			first, large, small := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama, Claim: weight(2)}), r.hold(t, Request{Target: llama})
			r.up(llama, 0)
			require.Equal(t, []State{Admitted, Released, Released}, states(first, large, small))
			large.Report(event)
			require.Equal(t, []State{Admitted, Ended, Admitted}, states(first, large, small))
			first.Report(Leave)
			small.Report(Leave)
			r.requireAtRest(t)
		})
	}
}

func TestTheWaitForRoomEnds(t *testing.T) {
	t.Parallel()
	r := gated(1, Options{Limits: wide})
	replica := r.up(llama, 1)
	runs := r.queue(t, Request{Target: llama})
	held, ordinary := r.hold(t, Request{Target: llama}), r.queue(t, Request{Target: llama})
	require.Equal(t, []State{Granted, Released, Released}, states(runs, held, ordinary))
	require.Equal(t, Status{State: Ended, Outcome: OutcomeReleased, Err: ErrGateFull, Seq: held.seq}, held.Report(Expire), "its hold budget")
	require.Equal(t, Status{State: Ended, Outcome: OutcomeReleased, Err: ErrGateFull, Seq: ordinary.seq}, ordinary.Report(Expire), "its time to park")
	require.Equal(t, []error{ErrGateFull, ErrGateFull}, r.refused)
	require.Equal(t, map[Outcome]int{OutcomeReleased: 1}, r.outcomes)
	r.finish(runs)
	r.down(llama, replica)
	r.requireAtRest(t)
}

// TestAWaitThatIsOverDoesNotEndTheNext is for a clock that runs out in the moment in
// which its wait ends.
func TestAWaitThatIsOverDoesNotEndTheNext(t *testing.T) {
	t.Parallel()
	r := gated(1, Options{Limits: wide})
	replica := r.up(llama, 0)
	first, second := r.queue(t, Request{Target: llama}), r.queue(t, Request{Target: llama})
	require.Equal(t, Admitted, first.Report(Expire).State, "its time to park")
	require.Equal(t, Released, second.Report(TimeOut).State, "its time for a slot")
	first.Report(Leave)
	second.Report(Leave)
	r.down(llama, replica)
	r.requireAtRest(t)
}

func TestRoomIsGivenBackWhenTheReplicasLeave(t *testing.T) {
	t.Parallel()
	r := gated(1, Options{Limits: wide})
	w, next := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
	replica := r.up(llama, 0)
	require.Equal(t, []State{Admitted, Released}, states(w, next))
	r.down(llama, replica)
	require.Equal(t, []State{Held, Held}, states(w, next))
	require.Zero(t, r.slots.used[llama])
	w.Report(Leave)
	next.Report(Leave)
	r.requireAtRest(t)
}

func TestALargerGateIsUsedAtTheNextLook(t *testing.T) {
	t.Parallel()
	r := gated(1, Options{Limits: wide})
	a, b := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
	r.up(llama, 0)
	require.Equal(t, Released, b.Status().State)
	r.slots.budgets[llama] = 2
	r.UpdateAll()
	require.Equal(t, Admitted, b.Status().State)
	a.Report(Leave)
	b.Report(Leave)
	r.requireAtRest(t)
}

func TestARequestMayQueueWithTheRoomItHas(t *testing.T) {
	t.Parallel()
	limits := wide
	limits.QueueDepth = 1
	r := gated(1, Options{Limits: limits})
	replica := r.up(llama, 0)
	req := r.slots.claiming(Request{Target: llama})
	reservation, err := req.Claim.Admit(false)
	require.NoError(t, err)
	req.Reservation = reservation
	w := r.queue(t, req)
	require.Equal(t, Admitted, w.Status().State)
	_, err = r.Queue(Request{Target: llama})
	require.ErrorIs(t, err, ErrNoQueue)
	r.down(llama, replica)
	require.Equal(t, Ended, w.Status().State, "the caller decides anew")
	r.requireAtRest(t)
}

func TestAWaitForASlotGoesOnWithFurtherReplicas(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	replica := r.up(llama, 0)
	w := r.queue(t, Request{Target: llama})
	r.slots.further = 1
	require.Equal(t, Admitted, w.Report(TimeOut).State, "there is one more step")
	s := w.Report(TimeOut)
	require.Equal(t, Status{State: Ended, Outcome: OutcomeReleased, Err: ErrTimeout, Seq: w.seq}, s)
	r.slots.further = 1
	w = r.queue(t, Request{Target: llama})
	replica.free = 1
	require.Equal(t, Granted, w.Report(TimeOut).State, "the next step has a slot")
	r.finish(w)
	r.requireAtRest(t)
}

func TestDepthZeroTurnsReleasedRequestsAway(t *testing.T) {
	t.Parallel()
	limits := wide
	limits.QueueDepth = 0
	r := newRig(Options{Limits: limits})
	a, b := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
	r.up(llama, 1)
	require.Equal(t, Granted, a.Status().State)
	require.Equal(t, Status{State: Ended, Outcome: OutcomeReleased, Err: ErrNoQueue, Seq: b.seq}, b.Status())
	require.Equal(t, []error{ErrNoQueue}, r.refused)
	r.finish(a)
	r.requireAtRest(t)
}

func TestDepthZeroStillWaitsForRoom(t *testing.T) {
	t.Parallel()
	limits := wide
	limits.QueueDepth = 0
	r := gated(2, Options{Limits: limits})
	replica := r.up(llama, 2)
	first := r.hold(t, Request{Target: llama, Claim: weight(2)})
	served, refused := r.queue(t, Request{Target: llama}), r.queue(t, Request{Target: llama})
	require.Equal(t, []State{Granted, Released, Released}, states(first, served, refused))
	replica.free = 0
	r.finish(first)
	require.Equal(t, []State{Granted, Ended}, states(served, refused), "both fit, and there is a slot for one")
	require.ErrorIs(t, refused.Status().Err, ErrNoQueue)
	r.finish(served)
	r.requireAtRest(t)
}

func TestTheWaitForASlotIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := gated(1, Options{Limits: wide})
		replica := r.up(llama, 0)
		first, second := r.queue(t, Request{Target: llama}), r.queue(t, Request{Target: llama})
		pass(2 * time.Second)
		gate, queue := r.Depths("llama")
		require.Equal(t, []int{1, 1}, []int{gate, queue})
		replica.free = 1
		r.Update(llama)
		require.Equal(t, []time.Duration{2 * time.Second}, r.queued)
		pass(time.Second)
		r.finish(first)
		require.Equal(t, []time.Duration{2 * time.Second, 0}, r.queued, "the wait for a reservation does not count")
		r.finish(second)
		r.requireAtRest(t)
	})
}

func TestOnlyRequestsThatASlotWouldServeWaitForOne(t *testing.T) {
	t.Parallel()
	told := 0
	r := gated(2, Options{Limits: wide, OnSlotWaiters: func(target.Target) { told++ }})
	first, second := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
	require.Zero(t, r.SlotWaiters(llama), "no replica")
	require.Zero(t, told)
	replica := r.up(llama, 0)
	require.Equal(t, 2, r.SlotWaiters(llama))
	require.Equal(t, 1, told)
	third := r.queue(t, Request{Target: llama})
	require.Equal(t, 2, r.SlotWaiters(llama), "the third waits for a reservation")
	require.Zero(t, r.SlotWaiters(qwen))
	require.Equal(t, 1, told)
	replica.free = 1
	r.Update(llama)
	require.Equal(t, 1, r.SlotWaiters(llama))
	require.Equal(t, 2, told)
	second.Report(Leave)
	require.Equal(t, 1, r.SlotWaiters(llama), "the third has its reservation")
	third.Report(Leave)
	require.Zero(t, r.SlotWaiters(llama))
	require.Greater(t, told, 3)
	r.finish(first)
	r.requireAtRest(t)
}
