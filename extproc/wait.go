// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// wait is the wait of a request: for a replica, for a reservation, for a slot.
type wait struct {
	p         *pass
	waiter    *holdstate.Waiter
	held      bool // no replica served the request when it arrived
	impatient bool // the budget is the client's patience
	answer    answer
	noted     bool // note was called

	budget *time.Timer // of a hold
	park   *time.Timer // nil until a request that is not held waits for a reservation
	queue  *time.Timer // nil until it waits for a slot
}

// start starts the timers, and moves the body to memory of its exact size.
func (w *wait) start(d Decision) {
	p := w.p
	p.watch()
	w.budget = time.NewTimer(time.Until(p.req.Arrived.Add(d.Budget)))
	if interval := p.head.keepaliveEvery(p.s.o.Keepalive); w.held && interval > 0 && p.canRelay() {
		w.answer.keepAliveEvery(interval)
	}
	p.upload.hold()
	if w.held {
		w.noteHeld()
	}
}

// noteHeld records that the request is held, and reports it to the observer the first time.
func (w *wait) noteHeld() {
	p, first := w.p, false
	p.flight.note(func(r *Record) {
		first = r.Verdict != VerdictHold
		r.Verdict = VerdictHold
	})
	if first {
		p.s.d.Observer.Noted(&p.req, Note{Held: true})
	}
}

// untilSlot waits until the request has a slot or its wait has ended, and returns the
// status of the waiter. left is true when the client left first.
func (w *wait) untilSlot() (s holdstate.Status, left bool) {
	for {
		s := w.waiter.Status()
		if s.State != holdstate.Admitted {
			w.queue = nil // each admission starts a new wait for a slot
		}
		var budget, park, queue <-chan time.Time
		switch {
		case s.State == holdstate.Granted, s.State == holdstate.Ended:
			return s, false
		case s.State == holdstate.Admitted:
			queue = started(&w.queue, w.p.s.o.RequestTimeout)
		case w.held:
			budget = w.budget.C
		default:
			park = started(&w.park, w.p.s.o.AdmitPark)
		}
		select {
		case <-w.waiter.Changed():
		case <-budget:
			if w.waiter.Report(holdstate.Expire).State != holdstate.Ended {
				// A replica has just come up. Should the request be held again, its budget
				// has already ended.
				w.budget.Reset(0)
			}
		case <-park:
			w.waiter.Report(holdstate.Expire) // no effect if it has just got a reservation
			w.park = nil
		case <-queue:
			w.waiter.Report(holdstate.TimeOut)
			w.queue = nil // should further replicas be open to it, it waits again for them
		case <-w.answer.tick:
			if !w.answer.keepalive() {
				w.leave()
				return s, true
			}
		case <-w.p.gone:
			w.leave()
			return s, true
		}
	}
}

// started returns the channel of a timer, which it starts if it is nil.
func started(timer **time.Timer, d time.Duration) <-chan time.Time {
	if *timer == nil {
		*timer = time.NewTimer(d)
	}
	return (*timer).C
}

// leave ends the wait of a client that went away.
func (w *wait) leave() {
	w.p.left()
	if w.held && !w.p.s.isClosing() {
		w.p.s.d.Observer.Noted(&w.p.req, Note{Left: true})
	}
	if s := w.waiter.Report(holdstate.Leave); s.Grant != nil {
		s.Grant.Release()
	}
}

// refusal returns the refusal of a request whose wait ended without a slot. It returns nil
// for a request that can be decided again, because no answer has begun: the map no longer
// places the model here, or the request was not held and the last replica left.
func (w *wait) refusal(s holdstate.Status) *refusal.Refusal {
	model := w.p.req.Model
	if why := s.Why(); why != nil {
		return refusal.For(why, refusal.Wait{Model: model, Held: w.held, Impatient: w.impatient, Wakes: w.p.s.d.Wakes})
	}
	if r := w.p.flight.call.Recheck(); r != nil {
		return r
	}
	if w.answer.committed {
		return refusal.ModelNotFound(model)
	}
	return nil
}

// timing returns the value of Server-Timing: how long the request was held, and how long
// it then waited for a slot, in milliseconds.
func (w *wait) timing() string {
	held, queued := w.waiter.Waited()
	return fmt.Sprintf("hold;dur=%d, queue;dur=%d", held.Milliseconds(), queued.Milliseconds())
}

// note records how long the request waited, and how a hold ended. It must be called before
// anything after which the record may be reported.
func (w *wait) note() {
	if w.noted {
		return
	}
	w.noted = true
	held, queued := w.waiter.Waited()
	outcome := holdstate.Pending
	if w.held {
		outcome = w.waiter.Status().Outcome
	}
	w.p.flight.note(func(r *Record) { r.waited(held, queued, outcome) })
}

// close ends the wait.
func (w *wait) close() {
	w.note()
	for _, timer := range []*time.Timer{w.budget, w.park, w.queue} {
		if timer != nil {
			timer.Stop()
		}
	}
	w.answer.stopKeepalives()
	w.waiter.Report(holdstate.Leave) // no effect, except after a panic
}
