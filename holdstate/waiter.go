// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"container/list"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// Request is what a request waits with.
type Request struct {
	Target target.Target
	Key    string // the API key's id, empty without one
	// ClientIDs are the client's own request ids, the first UUID counts.
	ClientIDs [2]string
	Bytes     int64  // body bytes kept while it waits
	Seq       uint64 // place of an earlier wait of the same request; 0: a new one
	// Again: its replica gave no answer. The capacity queue takes it whatever its depth.
	Again bool
	// Counted: an earlier wait of it has had the outcome that counts.
	Counted bool
	// Claim gets the request its reservation and its slot. It is called under the
	// machine's lock and must not call the machine.
	Claim Claim
	// Reservation is what the gate reserved for a request before Queue, which owns it unless
	// it returns an error; nil: the request waits for room.
	Reservation Reservation
}

// Waiter is one request that waits. Its methods are safe for concurrent use.
type Waiter struct {
	m        *Machine
	request  Request
	turnKey  string
	id       identity
	seq      uint64
	ordinary bool
	again    bool // it had a place before
	joined   time.Time
	changed  chan struct{}

	// Guarded by the machine's lock.
	state       State
	outcome     Outcome
	reason      string
	err         error
	reservation Reservation // in state Admitted
	grant       Grant
	bytes       int64
	placed      bool // counts against the limits and in the demand
	queue       *queue
	place       *list.Element
	released    time.Time
	admitted    time.Time
	left        time.Time // the line, with a slot or at the end
}

// Status is a waiter's state at one moment.
type Status struct {
	State   State
	Outcome Outcome
	Reason  string // of a failed wake
	// Err is what a released waiter lacked when it ended: ErrNoRoom, ErrNoQueue,
	// ErrTimeout, or what Claim.Admit returned.
	Err   error
	Grant Grant // in state Granted
	Seq   uint64
}

// Hold adds a request for a model that sleeps. On an error nothing was added:
// ErrFull, ErrDraining, or a *FailedError. Otherwise the caller must bring the
// waiter to its end with Tell.
func (m *Machine) Hold(r Request) (*Waiter, error) {
	var w *Waiter
	var err error
	m.change(func() {
		mod := m.model(r.Target.Model)
		if err = m.mayHold(mod, r); err != nil {
			m.tell(mod)
			return
		}
		w = m.newWaiter(r)
		m.enter(w)
	})
	if err == ErrFull && !r.Counted { //nolint:errorlint // made two lines above, never wrapped
		m.o.OnOutcome(OutcomeFull, 0)
	}
	return w, err
}

// Queue adds a request that a replica serves but has no slot for.
func (m *Machine) Queue(r Request) (*Waiter, error) {
	var w *Waiter
	var err error
	m.change(func() {
		if err = m.mayQueue(r, r.Reservation != nil); err != nil {
			return
		}
		w = m.newWaiter(r)
		w.ordinary, w.state, w.released = true, Released, w.joined
		if r.Reservation != nil {
			w.state, w.reservation, w.admitted = Admitted, r.Reservation, w.joined
		}
		m.enter(w)
	})
	return w, err
}

// mayQueue counts those that wait, unless the request was let in before. Without a
// queue they may still wait for room, which is bounded by time alone.
func (m *Machine) mayQueue(r Request, room bool) error {
	l, depth := m.queues[r.Target], m.o.Limits.QueueDepth
	switch {
	case m.draining:
		return ErrDraining
	case r.Again:
	case depth == 0 && room, depth > 0 && l != nil && l.ordinary.n >= depth:
		return ErrNoQueue
	}
	return nil
}

// Place gives the next place to a request that need not wait now, for its Seq
// should it wait later.
func (m *Machine) Place() uint64 { return m.seq.Add(1) }

func (m *Machine) mayHold(mod *model, r Request) error {
	l := m.o.Limits
	switch {
	case m.draining:
		return ErrDraining
	case time.Now().Before(mod.failedUntil):
		return &FailedError{Reason: mod.failure}
	case mod.held >= l.PerModel, m.held >= l.Total, m.bytes+r.Bytes > l.Bytes,
		r.Key != "" && mod.byKey[r.Key] >= l.PerKey, !m.hasModelBytes(r):
		return ErrFull
	}
	return nil
}

// hasModelBytes says whether the model may have the request's bytes too, so that no
// model takes all that others may need.
func (m *Machine) hasModelBytes(r Request) bool {
	model, l := r.Target.Model, m.o.Limits.BytesPerModel
	return l == 0 || r.Bytes == 0 || m.bytesOf[model]+r.Bytes <= l || !m.o.Others(model)
}

// addBytes counts body bytes of a waiter; n is negative for those that are freed.
func (m *Machine) addBytes(w *Waiter, n int64) {
	model := w.request.Target.Model
	w.bytes += n
	m.bytes += n
	if m.bytesOf[model] += n; m.bytesOf[model] == 0 {
		delete(m.bytesOf, model)
	}
}

func (m *Machine) newWaiter(r Request) *Waiter {
	w := &Waiter{
		m: m, request: r, turnKey: r.Key, seq: r.Seq,
		id: identityOf(r.Key, r.ClientIDs[:]...), joined: time.Now(), changed: make(chan struct{}, 1),
	}
	if m.o.InOrder {
		w.turnKey = ""
	}
	w.again = w.seq != 0
	if !w.again {
		w.seq = m.Place()
	}
	m.addBytes(w, r.Bytes)
	return w
}

// enter puts w in its line and looks whether it can go on at once. The waiter
// stands in the line before the replicas are asked, so a registration in between
// finds it.
func (m *Machine) enter(w *Waiter) {
	l := m.queues[w.request.Target]
	if l == nil {
		l = &queues{}
		m.queues[w.request.Target] = l
	}
	m.waiting.Add(1)
	l.look = true
	w.left = time.Time{}
	if w.ordinary {
		q := &l.ordinary
		if w.request.Again {
			q = &l.held // it is no newcomer
		}
		q.add(w)
		if w.state == Released {
			q.gated++
		}
	} else {
		l.held.add(w)
		m.count(w)
		if l.serving {
			m.apply(w, Up)
		}
	}
	m.update(w.request.Target)
	if w.ordinary && !l.serving {
		m.apply(w, Down)
	}
}

// count takes a place: against the limits, and in the demand.
func (m *Machine) count(w *Waiter) {
	mod := m.model(w.request.Target.Model)
	w.placed = true
	m.held++
	mod.held++
	if w.request.Key != "" {
		mod.byKey[w.request.Key]++
	}
	mod.identities[w.id]++
	m.begin(mod, w)
	m.tell(mod)
}

// uncount gives the place back.
func (m *Machine) uncount(w *Waiter) {
	mod := m.model(w.request.Target.Model)
	w.placed = false
	m.held--
	mod.held--
	decrement(mod.byKey, w.request.Key)
	decrement(mod.identities, w.id)
	if w.outcome == OutcomeDisconnected || w.outcome == OutcomeExpired {
		m.lingerFor(mod, m.o.Linger)
	}
	m.tell(mod)
}

func decrement[K comparable](counts map[K]int, k K) {
	if counts[k] > 1 {
		counts[k]--
	} else {
		delete(counts, k)
	}
}

// apply is the only place where a waiter's state changes.
func (m *Machine) apply(w *Waiter, e Event) {
	was := w.state
	to, outcome := next(was, e)
	if to == was {
		return
	}
	w.state, w.outcome = to, outcome
	if w.ordinary && w.state == Held {
		// It was never held: the caller decides anew.
		w.state = Ended
	}
	m.leaveGate(w, was, e)
	switch w.state {
	case Held:
		m.holdAgain(w, was)
	case Released:
		w.released = time.Now()
		w.queue.gated++
	case Admitted:
		w.admitted = time.Now()
	case Granted:
		m.depart(w)
	case Ended:
		m.depart(w)
		m.end(w)
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// leaveGate keeps the gate's books for a waiter that was in it or had passed it.
func (m *Machine) leaveGate(w *Waiter, was State, e Event) {
	offered := false // to others: room that this one does not take
	switch was {
	case Released:
		w.queue.gated--
		if e == Expire {
			w.err = ErrNoRoom
		}
		// Those behind one that gave up may have had room all the time.
		offered = w.state == Ended && e != Refuse
	case Admitted:
		model, waited := w.request.Target.Model, time.Since(w.admitted)
		m.after = append(m.after, func() { m.o.OnQueued(model, waited) })
		if offered = w.state != Granted; offered {
			w.reservation.Release()
		}
		w.reservation = nil // the grant's, if there is one
		if e == TimeOut {
			w.err = ErrTimeout
		}
	default:
	}
	if offered {
		m.after = append(m.after, func() { m.Update(w.request.Target) })
	}
}

// holdAgain is for a waiter that had a replica: what ended the held ones in the
// meantime ends it too.
func (m *Machine) holdAgain(w *Waiter, was State) {
	w.released = time.Time{}
	if was == Granted {
		w.grant, w.again = nil, true
		m.enter(w)
	}
	switch {
	case m.draining:
		m.apply(w, Drain)
	case !m.holdable(w.request.Target):
		m.apply(w, Unplace)
	}
}

// depart takes w out of its line and of the counts.
func (m *Machine) depart(w *Waiter) {
	if w.queue != nil {
		w.queue.remove(w)
		w.left = time.Now()
		m.waiting.Add(-1)
		if l := m.queues[w.request.Target]; l != nil && l.held.n+l.ordinary.n == 0 {
			delete(m.queues, w.request.Target)
		}
	}
	if w.placed {
		m.uncount(w)
	}
}

func (m *Machine) end(w *Waiter) {
	m.addBytes(w, -w.bytes)
	if err := w.err; err != nil {
		m.after = append(m.after, func() { m.o.OnRefused(w.request.Target.Model, err) })
	}
	if w.ordinary || w.request.Counted {
		return
	}
	until := time.Now()
	if !w.released.IsZero() {
		until = w.released
	}
	outcome, held := w.outcome, until.Sub(w.joined)
	m.after = append(m.after, func() { m.o.OnOutcome(outcome, held) })
}

// Changed has a value whenever Status may have changed.
func (w *Waiter) Changed() <-chan struct{} { return w.changed }

// Waited is how long the waiter was held, and how long it has waited for a slot
// since, both without the time after the slot or the end.
func (w *Waiter) Waited() (held, queued time.Duration) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	now := w.left
	if now.IsZero() {
		now = time.Now()
	}
	if w.released.IsZero() {
		return now.Sub(w.joined), 0
	}
	return w.released.Sub(w.joined), now.Sub(w.released)
}

// Status is where the waiter stands now.
func (w *Waiter) Status() Status {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return Status{State: w.state, Outcome: w.outcome, Reason: w.reason, Err: w.err, Grant: w.grant, Seq: w.seq}
}

// Tell reports what the caller saw: Expire, TimeOut, Leave, Back or Done. It
// returns where the waiter stands then. A grant that the waiter had, or got in the
// same moment, stays the caller's to release. A waiter that is still Admitted after
// TimeOut may wait once more: further replicas are open to it.
func (w *Waiter) Tell(e Event) Status {
	w.m.change(func() {
		if e == TimeOut && w.state == Admitted && w.request.Claim.Next() {
			w.m.update(w.request.Target)
			return
		}
		w.m.apply(w, e)
	})
	return w.Status()
}

// FreeBytes stops counting the body: it was handed over.
func (w *Waiter) FreeBytes() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.m.addBytes(w, -w.bytes)
}
