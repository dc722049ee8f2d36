// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"time"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// hold is a request that waits: for a replica, then for a slot, then for the head
// of the engine's answer. It is the stream's only writer. Keepalives are sent from
// the same loop as the answer, so that none can follow the answer's first byte.
type hold struct {
	st        *stream
	w         *holdstate.Waiter
	held      bool // no replica served it when it came
	impatient bool // the budget is what the client said that it waits
	relayed   bool // it was held and has keepalives: the answer is relayed
	committed bool // a head was sent before the engine answered
	noted     bool // the wait is on record

	keepalives *time.Ticker     // nil: none
	tick       <-chan time.Time // its channel
	budget     *time.Timer
	park       *time.Timer // nil until an ordinary request finds no room
	queue      *time.Timer // nil until there is room
	fixed      bool        // the answer's head leaves no room for an error after it
	failing    bool        // the engine's error is passed on, and is to be cut
	tail       []byte      // the last two bytes of the engine's answer that the client has
}

// wait lets the request wait and then answers it.
func (st *stream) wait(d Decision) error {
	st.s.holds.Add(1)
	defer st.s.holds.Add(-1)
	st.watch()
	h := &hold{st: st, w: d.Waiter, held: d.Held, impatient: d.Impatient}
	defer h.w.Tell(holdstate.Leave) // only a crash comes here with a waiter that waits
	h.budget = time.NewTimer(time.Until(st.req.Arrived.Add(d.Budget)))
	defer h.stop()
	if interval := st.head.keepaliveEvery(st.s.o.Keepalive); d.Held && interval > 0 {
		h.relayed = true
		h.keepalives = time.NewTicker(interval)
		h.tick = h.keepalives.C
	}
	st.payload = st.body.Settle()
	if d.Held {
		st.flight.note(func(r *Record) { r.Verdict = VerdictHold })
	}
	defer h.noteWait()
	for {
		s, err := h.untilSlot()
		if s.State != holdstate.Granted {
			return err
		}
		st.keepPlace(s.Seq)
		st.timing = h.timing()
		if !h.relayed {
			h.w.Tell(holdstate.Done)
			h.noteWait()
			return st.serve(s.Grant)
		}
		if again, err := h.relay(s.Grant); !again {
			return err
		}
	}
}

func (h *hold) stop() {
	for _, timer := range []*time.Timer{h.budget, h.park, h.queue} {
		if timer != nil {
			timer.Stop()
		}
	}
	if h.keepalives != nil {
		h.keepalives.Stop()
	}
}

// noteWait records how long the request waited, and how a hold ended. It comes before
// anything that can end the request's record.
func (h *hold) noteWait() {
	if h.noted {
		return
	}
	h.noted = true
	held, queued := h.w.Waited()
	outcome := holdstate.Pending
	if h.held {
		outcome = h.w.Status().Outcome
	}
	h.st.flight.note(func(r *Record) { r.waited(held, queued, outcome) })
}

// untilSlot waits until there is a slot, or ends the request. It returns where the
// waiter stands; only a granted one goes on.
func (h *hold) untilSlot() (holdstate.Status, error) {
	for {
		s := h.w.Status()
		if s.State != holdstate.Admitted {
			h.queue = nil // a later admission gives a new wait for a slot
		}
		var budget, park, queue <-chan time.Time
		switch {
		case s.State == holdstate.Granted:
			return s, nil
		case s.State == holdstate.Ended:
			return s, h.ended(s)
		case s.State == holdstate.Admitted:
			queue = started(&h.queue, h.st.s.o.RequestTimeout)
		case h.held:
			budget = h.budget.C
		default:
			park = started(&h.park, h.st.s.o.AdmitPark)
		}
		select {
		case <-h.w.Changed():
		case <-budget:
			if h.w.Tell(holdstate.Expire).State != holdstate.Ended {
				// It was let through in this moment. Held again, it ends at once.
				h.budget.Reset(0)
			}
		case <-park:
			h.w.Tell(holdstate.Expire) // which leaves it alone when it was let through in this moment
			h.park = nil
		case <-queue:
			h.w.Tell(holdstate.TimeOut)
			h.queue = nil // further replicas are waited for as long
		case <-h.tick:
			if !h.keepalive() {
				return h.leave(), nil
			}
		case <-h.st.gone:
			return h.leave(), nil
		}
	}
}

// started is the channel of a timer that runs from the first look on.
func started(timer **time.Timer, d time.Duration) <-chan time.Time {
	if *timer == nil {
		*timer = time.NewTimer(d)
	}
	return (*timer).C
}

// leave ends the wait of a client that went away.
func (h *hold) leave() holdstate.Status {
	h.st.left()
	s := h.w.Tell(holdstate.Leave)
	if s.Grant != nil {
		s.Grant.Release()
	}
	s.State = holdstate.Ended
	return s
}

// ended answers a request whose wait ended without a slot.
func (h *hold) ended(s holdstate.Status) error {
	model := h.st.req.Model
	if why := s.Why(); why != nil {
		return h.fail(refusal.For(why, refusal.Wait{Model: model, Held: h.held, Impatient: h.impatient, Wakes: h.st.s.d.Wakes}))
	}
	// The key is no longer good, the map no longer places the model here, or the last replica left a request
	// that was never held: it is as if it arrived in this moment.
	if r := h.st.flight.call.Recheck(); r != nil {
		return h.fail(r)
	}
	if h.committed {
		return h.fail(refusal.ModelNotFound(model))
	}
	h.stop()
	h.st.keepPlace(s.Seq)
	h.noteWait()
	return h.st.decide()
}

// keepalive sends one keepalive, and the head before the first.
func (h *hold) keepalive() (sent bool) {
	if !h.committed {
		h.committed = true
		if !h.st.send(h.st.committedHead()) {
			return false
		}
	}
	return h.st.send(wire.StreamBody(keepaliveForm(h.st.req.Endpoint.API, h.st.req.Stream), false))
}

// keepaliveForm is the bytes of one keepalive. A comment has ONE newline: an empty
// line after it is an empty event, which breaks clients. Anthropic's clients do
// not count comments as signs of life, but pings.
func keepaliveForm(api refusal.API, stream bool) []byte {
	switch {
	case !stream:
		return []byte(" ")
	case api == refusal.Anthropic:
		return []byte(": keep-alive\nevent: ping\ndata: {\"type\": \"ping\"}\n\n")
	default:
		return []byte(": keep-alive\n")
	}
}

// fail ends the request with a refusal, in the form that is still possible.
func (h *hold) fail(r *refusal.Refusal) error {
	if !h.committed {
		return h.st.refuse(r)
	}
	return h.late(r)
}

// timing is the value of Server-Timing: how long the request was held, and how
// long it then waited for a slot, in milliseconds.
func (h *hold) timing() string {
	held, queued := h.w.Waited()
	return fmt.Sprintf("hold;dur=%d, queue;dur=%d", held.Milliseconds(), queued.Milliseconds())
}
