// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

// both runs two functions at once and waits for them.
func both(one, two func()) {
	var wg sync.WaitGroup
	wg.Go(one)
	two()
	wg.Wait()
}

// TestARegistrationIsNeverMissed registers a replica, or frees a slot, while a request
// enters: if the waiter did not check twice, some would wait for ever.
func TestARegistrationIsNeverMissed(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	for range 2000 {
		var w *Waiter
		var replica *fakeReplica
		both(
			func() { replica = r.up(llama, 1) },
			func() { w = r.hold(t, Request{Target: llama}) },
		)
		require.Equal(t, Granted, w.Status().State)

		var next *Waiter
		both(
			func() { r.finish(w) },
			func() { next = r.queue(t, Request{Target: llama}) },
		)
		require.Equal(t, Granted, next.Status().State)
		r.finish(next)
		r.down(llama, replica)
	}
	r.requireAtRest(t)
}

// TestADisconnectRacesARelease ten thousand times: the slot goes to the waiter or
// stays free, and the hold is counted once.
func TestADisconnectRacesARelease(t *testing.T) {
	t.Parallel()
	const times = 10_000
	r := newRig(Options{Limits: wide})
	for i := range times {
		w := r.hold(t, Request{Target: llama, Bytes: 10})
		event := []Event{Leave, Expire, TimeOut}[i%3]
		var replica *fakeReplica
		var s Status
		both(
			func() { replica = r.up(llama, 1) },
			func() { s = w.Report(event) },
		)
		if s = w.Status(); s.State == Granted {
			s = w.Report(Done)
		}
		if s.Grant != nil {
			s.Grant.Release()
		}
		require.Equal(t, Ended, s.State)
		require.Equal(t, 1, replica.free)
		r.down(llama, replica)
	}
	sum := 0
	for _, n := range r.outcomes {
		sum += n
	}
	require.Equal(t, times, sum)
	r.requireAtRest(t)
}

// client is one request that waits until it is served, with n engines that die
// under it.
func (r *rig) client(w *Waiter, deaths int) {
	for range w.Changed() {
		s := w.Status()
		switch {
		case s.State == Ended:
			return
		case s.State != Granted:
			continue
		case deaths > 0:
			deaths--
			w.Report(Back)
			s.Grant.Release()
			r.Update(w.request.Target)
		default:
			r.finish(w)
			return
		}
	}
}

// TestTenThousandComeAndGo at once, in every way there is: all counts are exactly
// zero at rest.
func TestTenThousandComeAndGo(t *testing.T) {
	t.Parallel()
	const times = 10_000
	r := newRig(Options{Limits: wide})
	targets := []target.Target{llama, embed, qwen}
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range times {
		wg.Go(func() {
			<-begin
			req := Request{Target: targets[i%3], Key: fmt.Sprint(i % 7), Bytes: int64(i % 100)}
			if i%5 == 0 {
				req.ClientIDs[0] = idA
			}
			w, err := r.Hold(req)
			if err != nil {
				t.Error(err)
				return
			}
			switch i % 8 {
			case 0, 1, 2:
				if g := w.Report([]Event{Leave, Leave, Done}[i%8]).Grant; g != nil {
					g.Release()
					r.Update(w.request.Target)
				}
				if i%8 == 2 {
					r.client(w, 0)
				}
			case 3:
				if w.Report(Expire).State != Ended {
					r.client(w, 0)
				}
			default:
				r.client(w, 0)
			}
			_ = r.Demand("llama") // a scrape
			_ = r.Waiting(llama)
		})
	}
	for i, target := range targets {
		wg.Go(func() {
			<-begin
			for range 20 { // replicas that come and go; the last stays
				r.down(target, r.up(target, 1+i))
			}
			r.up(target, 4)
		})
	}
	close(begin)
	wg.Wait()
	sum := 0
	for o, n := range r.outcomes {
		require.Contains(t, []Outcome{OutcomeReleased, OutcomeExpired, OutcomeDisconnected}, o)
		sum += n
	}
	require.Equal(t, times, sum, "one outcome each")
	for _, name := range []string{"llama", "qwen"} {
		require.Zero(t, r.Demand(name))
		require.False(t, r.Wanted(name))
	}
	r.requireAtRest(t)
}

// TestTheLastWordIsTrue lets many goroutines change the need of one model: what Wanted
// returns during the last call of OnWanted is the final state, in whatever order the calls
// run.
func TestTheLastWordIsTrue(t *testing.T) {
	t.Parallel()
	for range 200 {
		r := newRig(Options{Limits: wide})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				w, err := r.Hold(Request{Target: llama})
				if err == nil {
					w.Report(Leave)
				}
			})
		}
		stays := r.hold(t, Request{Target: llama})
		wg.Wait()
		wanted := r.wanted("llama")
		require.True(t, wanted[len(wanted)-1])
		stays.Report(Leave)
		wanted = r.wanted("llama")
		require.False(t, wanted[len(wanted)-1])
		r.requireAtRest(t)
	}
}

// TestMapsDrainsAndFailuresRaceTheWaiters is for the race detector and the rest.
func TestMapsDrainsAndFailuresRaceTheWaiters(t *testing.T) {
	t.Parallel()
	for range 100 {
		r := newRig(Options{Limits: wide})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if w, err := r.Hold(Request{Target: llama}); err == nil {
					r.client(w, 1)
				}
			})
		}
		wg.Go(func() { r.Fail("llama", "no") })
		wg.Go(func() { r.Reconcile(onlyQwen) })
		wg.Go(func() { r.down(llama, r.up(llama, 3)) })
		r.Drain()
		wg.Wait()
		r.requireAtRest(t)
	}
}
