// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheQueueHasADepth(t *testing.T) {
	t.Parallel()
	limits := wide
	limits.QueueDepth = 2
	r := newRig(Options{Limits: limits})
	r.up(llama, 0)
	r.up(embed, 0)
	first, second := r.queue(t, Request{Target: llama}), r.queue(t, Request{Target: llama})
	_, err := r.Queue(Request{Target: llama})
	require.ErrorIs(t, err, ErrNoQueue)
	again := r.queue(t, Request{Target: llama, Retry: true})
	require.Equal(t, Admitted, again.Status().State, "one whose replica died comes in beyond the depth")
	again.Report(Leave)
	other := r.queue(t, Request{Target: embed})
	released := r.hold(t, Request{Target: llama})
	require.Equal(t, Admitted, released.Status().State, "released ones come in beyond the depth")

	second.Report(Leave)
	third := r.queue(t, Request{Target: llama})
	require.True(t, r.Waiting(llama))
	require.Equal(t, OutcomeReleased, third.Report(TimeOut).Outcome)
	for _, w := range []*Waiter{first, other, released} {
		w.Report(Leave)
	}
	require.Equal(t, map[Outcome]int{OutcomeDisconnected: 1}, r.outcomes, "ordinary requests were no holds")
	r.requireAtRest(t)
}

func TestDepthZeroIsNoQueue(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: Limits{PerModel: 1, PerKey: 1, Total: 1, Bytes: 1}})
	r.up(llama, 0)
	_, err := r.Queue(Request{Target: llama, Reservation: &fakeReservation{}})
	require.ErrorIs(t, err, ErrNoQueue)
	r.requireAtRest(t)
}

func TestAnOrdinaryRequestWaitsBehindReleasedOnes(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	replica := r.up(llama, 0)
	first, second := r.queue(t, Request{Target: llama, Key: "a"}), r.queue(t, Request{Target: llama, Key: "a"})
	light := r.queue(t, Request{Target: llama, Key: "b"})
	require.Zero(t, r.Demand("llama"))
	require.False(t, r.Wanted("llama"), "a replica is up")
	late := r.hold(t, Request{Target: llama, Key: "c"})
	require.Equal(t, 1, r.Demand("llama"))

	replica.free = 1
	r.Update(llama)
	for _, w := range []*Waiter{late, first, light, second} {
		require.Equal(t, Granted, w.Status().State)
		r.finish(w)
	}
	require.Equal(t, map[Outcome]int{OutcomeReleased: 1}, r.outcomes)
	r.requireAtRest(t)
}

// A request that had a slot and whose replica died is no newcomer, though it was not
// held at its last place.
func TestWhoseReplicaDiedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	first, second := r.hold(t, Request{Target: llama, Key: "a"}), r.hold(t, Request{Target: llama, Key: "a"})
	replica := r.up(llama, 1)
	seq, grant := first.Status().Seq, first.Status().Grant
	first.Report(Done) // Envoy carries it
	ordinary := r.queue(t, Request{Target: llama, Key: "a"})
	died := r.queue(t, Request{Target: llama, Key: "a", Seq: seq, Retry: true})
	require.Equal(t, []State{Admitted, Admitted, Admitted}, states(second, ordinary, died))
	require.Equal(t, 1, r.Demand("llama"), "it is not held")
	grant.Release()
	r.Update(llama)
	for _, w := range []*Waiter{died, second, ordinary} {
		require.Equal(t, Granted, w.Status().State)
		r.finish(w)
	}
	require.Equal(t, map[Outcome]int{OutcomeReleased: 2}, r.outcomes)

	replica.free = 0
	died = r.queue(t, Request{Target: llama, Key: "a", Retry: true})
	r.down(llama, replica)
	require.Equal(t, Status{State: Ended, Seq: died.Status().Seq}, died.Status(), "the caller decides anew")
	died = r.queue(t, Request{Target: llama, Key: "a", Retry: true})
	require.Equal(t, Ended, died.Status().State)
	r.requireAtRest(t)
}

func TestQueueTakesAFreeSlotAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	r.up(llama, 1)
	w := r.queue(t, Request{Target: llama})
	require.Equal(t, Granted, w.Status().State)
	r.finish(w)
	r.requireAtRest(t)
}

// TestAnOrdinaryRequestIsDecidedAnew when no replica is left: it may then be held
// in the place of its arrival.
func TestAnOrdinaryRequestIsDecidedAnew(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	replica := r.up(llama, 0)
	early := r.queue(t, Request{Target: llama, Key: "a", Bytes: 3})
	late := r.hold(t, Request{Target: llama, Key: "a"})
	r.down(llama, replica)
	require.Equal(t, Status{State: Ended, Seq: early.seq}, early.Status())
	require.Equal(t, Held, late.Status().State)
	require.EqualValues(t, 0, r.bytes)

	again := r.hold(t, Request{Target: llama, Key: "a", Bytes: 3, Seq: early.Status().Seq})
	require.Equal(t, early.Status().Seq, again.Status().Seq)
	r.up(llama, 1)
	require.Equal(t, []State{Granted, Admitted}, states(again, late))
	r.finish(again)
	r.finish(late)
	require.Equal(t, map[Outcome]int{OutcomeReleased: 2}, r.outcomes)
	r.requireAtRest(t)
}

func TestQueueWithoutAReplicaEndsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	w := r.queue(t, Request{Target: llama})
	require.Equal(t, Status{State: Ended, Seq: w.seq}, w.Status())
	r.requireAtRest(t)
}

func TestAnOrdinaryRequestComesBackToItsCaller(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	replica := r.up(llama, 1)
	w := r.queue(t, Request{Target: llama})
	r.down(llama, replica)
	s := w.Report(Back)
	require.Equal(t, Ended, s.State)
	require.Equal(t, Pending, s.Outcome)
	s.Grant.Release()
	require.Empty(t, r.outcomes)
	r.requireAtRest(t)
}
