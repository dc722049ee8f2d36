// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

// serveOut lets the waiters of a target through, batch by batch as slots are
// free, and gives the order of the batches.
func (r *rig) serveOut(t *testing.T, ws []*Waiter) [][]*Waiter {
	t.Helper()
	var batches [][]*Waiter
	for len(ws) > 0 {
		var batch, rest []*Waiter
		for _, w := range ws {
			if w.Status().State == Granted {
				batch = append(batch, w)
			} else {
				rest = append(rest, w)
			}
		}
		require.NotEmpty(t, batch, "%d wait and no slot was given", len(rest))
		// Give all back before anybody is looked at again, so that a batch is a batch.
		for _, w := range batch {
			w.Report(Done).Grant.Release()
		}
		r.Update(batch[0].request.Target)
		batches, ws = append(batches, batch), rest
	}
	return batches
}

func TestAThousandWaitersShareFourSlots(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{true, false} {
		t.Run(fmt.Sprint("in order ", inOrder), func(t *testing.T) {
			t.Parallel()
			r := newRig(Options{Limits: wide, InOrder: inOrder})
			const keys = 4
			ws := make([]*Waiter, 1000)
			for i := range ws { // 250 of each key, one key after the other
				ws[i] = r.hold(t, Request{Target: llama, Key: fmt.Sprint(i * keys / len(ws))})
			}
			replica := r.up(llama, 4)
			require.Equal(t, 996, r.Demand("llama"))
			batches := r.serveOut(t, ws)
			require.Len(t, batches, 250)
			for i, batch := range batches {
				require.Len(t, batch, 4)
				for j, w := range batch {
					want := ws[4*i+j]
					if !inOrder {
						want = ws[250*j+i] // one of each key
					}
					require.Same(t, want, w)
				}
			}
			require.Equal(t, 4, replica.free)
			require.Equal(t, 1000, r.counted(OutcomeReleased))
			r.requireAtRest(t)
		})
	}
}

func TestALightKeyPassesAHeavyOne(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	var ws []*Waiter
	for range 20 {
		ws = append(ws, r.hold(t, Request{Target: llama, Key: "heavy"}))
	}
	light := r.hold(t, Request{Target: llama, Key: "light"})
	r.up(llama, 1)
	r.finish(ws[0])
	require.Equal(t, Granted, light.Status().State)
	r.finish(light)
	r.serveOut(t, ws[1:])
	r.requireAtRest(t)
}

func TestABrokenReplicaCostsNoPlace(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	var ws []*Waiter
	for range 4 {
		ws = append(ws, r.hold(t, Request{Target: llama, Key: "a"}))
	}
	bad := r.up(llama, 2)
	require.Equal(t, []State{Granted, Granted, Admitted, Admitted}, states(ws...))

	// The engine refuses both, in the other order.
	for _, w := range []*Waiter{ws[1], ws[0]} {
		grant := w.Status().Grant
		grant.Failed("refused", false)
		r.down(llama, bad)
		s := w.Report(Back)
		require.Equal(t, Held, s.State)
		require.Nil(t, s.Grant)
		grant.Release()
	}
	require.Equal(t, []State{Held, Held, Held, Held}, states(ws...))
	require.Equal(t, 4, r.Demand("llama"), "they wait again")
	late := r.hold(t, Request{Target: llama, Key: "a"})

	r.up(llama, 1)
	batches := r.serveOut(t, append(ws, late))
	require.Equal(t, append(ws, late), slices.Concat(batches...))
	require.Equal(t, map[Outcome]int{OutcomeReleased: 5}, r.outcomes, "once each, however often they were held")
	r.requireAtRest(t)
}

func TestBackTakesAnotherReplicaAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	w := r.hold(t, Request{Target: llama})
	bad := r.up(llama, 1)
	good := r.up(llama, 1)
	old := w.Status().Grant
	r.down(llama, bad)
	s := w.Report(Back)
	require.Equal(t, Granted, s.State)
	require.NotSame(t, old, s.Grant)
	old.Release()
	r.finish(w)
	require.Equal(t, 1, good.free)
	r.requireAtRest(t)
}

func TestBackComesInBeyondTheLimits(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: Limits{PerModel: 1, PerKey: 1, Total: 1, Bytes: 10, QueueDepth: 1}})
	first := r.hold(t, Request{Target: llama, Key: "a", Bytes: 5})
	bad := r.up(llama, 1)
	second := r.hold(t, Request{Target: llama, Key: "a", Bytes: 5})
	grant := first.Status().Grant
	r.down(llama, bad)
	require.Equal(t, Held, first.Report(Back).State, "a request that was admitted is not refused later")
	grant.Release()
	require.Equal(t, 2, r.Demand("llama"))
	_, err := r.Hold(Request{Target: llama})
	require.ErrorIs(t, err, ErrFull)
	first.Report(Leave)
	second.Report(Leave)
	r.requireAtRest(t)
}

// TestAGrantIsNeverLost ends a waiter in every way just after it has got a slot.
func TestAGrantIsNeverLost(t *testing.T) {
	t.Parallel()
	tests := map[Event]struct {
		after   State
		outcome Outcome
	}{
		Expire:  {Granted, Pending},
		TimeOut: {Granted, Pending},
		Leave:   {Ended, OutcomeReleased},
		Done:    {Ended, OutcomeReleased},
	}
	for event, want := range tests {
		t.Run(eventNames[event], func(t *testing.T) {
			t.Parallel()
			r := newRig(Options{Limits: wide})
			w := r.hold(t, Request{Target: llama})
			replica := r.up(llama, 1) // unseen by the caller, who saw the event
			s := w.Report(event)
			require.Equal(t, want.after, s.State)
			require.Equal(t, want.outcome, s.Outcome)
			require.NotNil(t, s.Grant, "whoever ends the wait must give the slot back")
			require.Equal(t, s, w.Report(event), "said twice")
			s.Grant.Release()
			w.Report(Done)
			require.Equal(t, 1, replica.free)
			require.Equal(t, map[Outcome]int{OutcomeReleased: 1}, r.outcomes)
			r.requireAtRest(t)
		})
	}
}

func TestHeldTimeIsTheTimeWithoutAReplica(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		life         func(*rig, *Waiter)
		held, queued time.Duration
	}{
		"the budget ran out": {func(_ *rig, w *Waiter) { w.Report(Expire) }, 10 * time.Second, 0},
		"released, then served": {func(r *rig, w *Waiter) {
			replica := r.up(llama, 0)
			pass(20 * time.Second)
			replica.free++
			r.Update(llama)
			pass(40 * time.Second)
			r.finish(w)
		}, 10 * time.Second, 20 * time.Second},
		"left before a slot was free": {func(r *rig, w *Waiter) {
			r.up(llama, 0)
			pass(20 * time.Second)
			w.Report(Leave)
		}, 10 * time.Second, 20 * time.Second},
		"released, held again, expired": {func(r *rig, w *Waiter) {
			r.down(llama, r.up(llama, 0))
			pass(50 * time.Second)
			w.Report(Expire)
		}, time.Minute, 0},
		"granted, held again, released": {func(r *rig, w *Waiter) {
			replica := r.up(llama, 1)
			grant := w.Status().Grant
			r.down(llama, replica)
			w.Report(Back)
			grant.Release()
			pass(50 * time.Second)
			r.up(llama, 1)
			pass(time.Second)
			r.finish(w)
		}, time.Minute, 0},
		"held again, shut down": {func(r *rig, _ *Waiter) {
			r.down(llama, r.up(llama, 0))
			pass(time.Second)
			r.Drain()
		}, 11 * time.Second, 0},
		"the placement goes": {func(r *rig, _ *Waiter) {
			r.Reconcile(func(target.Target) bool { return false })
		}, 10 * time.Second, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(Options{Limits: wide})
				w := r.hold(t, Request{Target: llama})
				pass(10 * time.Second)
				held, queued := w.Waited()
				require.Equal(t, 10*time.Second, held)
				require.Zero(t, queued)
				tt.life(r, w)
				require.Equal(t, Ended, w.Status().State)
				require.Equal(t, []time.Duration{tt.held}, r.held)
				pass(time.Second) // the end stops both clocks
				held, queued = w.Waited()
				require.Equal(t, tt.held, held)
				require.Equal(t, tt.queued, queued)
				r.requireAtRest(t)
			})
		})
	}
}
