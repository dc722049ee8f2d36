// SPDX-License-Identifier: Apache-2.0

package holdstate

import "time"

// enter puts w in its queue, and lets it proceed if it can. The replicas are looked up after
// w is in the queue, so that a registration in between is not missed.
func (w *Waiter) enter() {
	m, t := w.m, w.request.Target
	qs := m.queues[t]
	if qs == nil {
		qs = &queues{}
		m.queues[t] = qs
	}
	m.waiting.Add(1)
	qs.recheck = true
	w.left = time.Time{}
	if w.kind == ofHold || w.request.Retry {
		qs.priority.add(w)
	} else {
		qs.ordinary.add(w)
	}
	switch {
	case w.state == Released:
		w.queue.gated++
	case w.state == Admitted:
		m.slotWaitersChanged(t)
	case w.kind == ofHold:
		m.model(t.Model).join(w)
		if qs.serving {
			w.apply(Up)
		}
	}
	m.update(t)
	if w.kind == ofQueue && !qs.serving {
		w.apply(Down)
	}
}

// apply is the only place where a waiter's state changes: it executes the row of the
// table for the event.
func (w *Waiter) apply(e Event) {
	s := steps[w.kind][w.state][e]
	if s == nil {
		return
	}
	m, was := w.m, w.state
	if s.further && w.request.Claim.Next() {
		m.update(w.request.Target)
		return
	}
	w.state, w.outcome = s.to, s.outcome
	if s.err != nil {
		w.err = s.err
	}
	if was == Admitted || s.to == Admitted {
		m.slotWaitersChanged(w.request.Target)
	}
	w.leaveState(was, s.to)
	if s.frees {
		m.after = append(m.after, func() { m.Update(w.request.Target) })
	}
	w.enterState(was, s.to)
	switch {
	case s.missed && w.mustDrain():
		w.apply(Drain)
	case s.missed && !m.holdable(w.request.Target):
		w.apply(Unplace)
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// drain ends w if the shutdown has come so far.
func (w *Waiter) drain() {
	if w.mustDrain() {
		w.apply(Drain)
	}
}

// mustDrain reports whether the shutdown ends w's wait.
func (w *Waiter) mustDrain() bool { return w.m.ending || w.m.draining && !w.begun }

// leaveState undoes what belongs to the state that the waiter leaves.
func (w *Waiter) leaveState(was, to State) {
	switch was { //nolint:exhaustive // nothing is done for the others
	case Released:
		w.queue.gated--
	case Admitted:
		model, waited := w.request.Target.Model, time.Since(w.admitted)
		w.m.after = append(w.m.after, func() { w.m.o.OnQueued(model, waited) })
		if to != Granted {
			w.reservation.Release()
		}
		w.reservation = nil
	}
}

// enterState does what belongs to the state that the waiter enters.
func (w *Waiter) enterState(was, to State) {
	switch to { //nolint:exhaustive // stateEnd is no state
	case Held:
		w.released = time.Time{}
		if was == Granted {
			w.grant, w.returning = nil, true
			w.enter()
		}
	case Released:
		w.released = time.Now()
		w.queue.gated++
	case Admitted:
		w.admitted = time.Now()
	case Granted:
		w.depart()
	case Ended:
		w.depart()
		w.end()
	}
}

// depart removes w from its queue and from the counts.
func (w *Waiter) depart() {
	m, t := w.m, w.request.Target
	if w.queue != nil {
		w.queue.remove(w)
		w.left = time.Now()
		m.waiting.Add(-1)
		if qs := m.queues[t]; qs != nil && qs.empty() {
			delete(m.queues, t)
		}
	}
	if w.placed {
		m.model(t.Model).leave(w)
	}
}

// end reports the end of w to the callbacks.
func (w *Waiter) end() {
	m := w.m
	w.addBytes(-w.bytes)
	if err := w.err; err != nil {
		m.after = append(m.after, func() { m.o.OnRefused(w.request.Target.Model, err) })
	}
	if w.kind == ofQueue || w.request.Counted {
		return
	}
	until := time.Now()
	if !w.released.IsZero() {
		until = w.released
	}
	outcome, held := w.outcome, until.Sub(w.joined)
	m.after = append(m.after, func() { m.o.OnOutcome(outcome, held) })
}
