// SPDX-License-Identifier: Apache-2.0

package holdstate

import "github.com/holdgate/holdgate/internal/target"

// Grant is a slot on a replica, taken for one request.
type Grant interface {
	// Address is the replica's ip:port.
	Address() string
	// Failed takes the replica out of routing until it reports itself healthy. With
	// died it had taken the request, or answered that it takes none: Take gives that
	// request a slot of another replica, or of this one after a pause.
	Failed(reason string, died bool)
	// Release gives the slot back. Calls after the first do nothing.
	Release()
}

// Reservation is what the admission gate reserved for one request.
type Reservation interface {
	// Release gives it back. Calls after the first do nothing.
	Release()
}

// TakeResult is what came of an attempt to take a slot.
type TakeResult uint8

// What can come of it.
const (
	Taken TakeResult = iota
	// Unfit: no slot that the request may have is free; others might be.
	Unfit
	// Full: no slot is free, so that nobody else need try.
	Full
	// Later: the pause of a replica that died under the request is not over. Update is
	// called when it is.
	Later
)

// Slots is who can serve, and how much at once.
type Slots interface {
	// Serving says whether a replica for t is in routing.
	Serving(t target.Target) bool
	// Admit reserves room for a request; nil when there is none at this moment. An
	// error says that the request can never have any. Behind others that have no
	// room yet nothing is reserved, and only the error counts.
	Admit(r *Request, behind bool) (Reservation, error)
	// Take takes a slot for a request with room. The grant owns the room.
	Take(r *Request, room Reservation) (Grant, TakeResult)
	// Next lets a request that has waited long enough take slots of further
	// replicas; false when there are no further ones.
	Next(r *Request) bool
}

// grant lets waiters through the gate and gives out free slots, in the order of the
// lines, released requests first.
func (m *Machine) grant(l *queues) {
	all := [...]*queue{&l.held, &l.ordinary}
	behind := false
	for _, q := range all {
		if q.gated > 0 && (l.look || !behind) {
			behind = m.admit(q, behind, l.look)
		}
	}
	l.look = false
	for _, q := range all {
		if full := m.give(q); full {
			break
		}
	}
	if m.o.Limits.QueueDepth == 0 {
		for _, q := range all {
			m.turnAway(q)
		}
	}
}

// admit lets a line through the gate until one has no room: nobody overtakes it. It
// reports whether somebody has none. Those behind are asked only on a look at all:
// each slot that becomes free would cost a question for each waiter.
func (m *Machine) admit(q *queue, behind, all bool) bool {
	for w := range q.inTurn() {
		if w.state != Released {
			continue
		}
		if behind && !all {
			break
		}
		room, err := m.o.Slots.Admit(&w.request, behind)
		switch {
		case err != nil:
			w.err = err
			m.apply(w, Refuse)
		case room == nil:
			behind = true
		default:
			w.reservation = room
			m.apply(w, HasRoom)
		}
	}
	return behind
}

// give gives out slots, and reports whether none is free any more. A granted slot
// spends its key's turn, so the next look begins anew.
func (m *Machine) give(q *queue) (full bool) {
	for again := q.n > q.gated; again; {
		again = false
		for w := range q.inTurn() {
			if w.state != Admitted {
				continue
			}
			took := m.take(w)
			if again = took == Taken; again {
				break
			}
			if took == Full {
				return true
			}
		}
	}
	return false
}

func (m *Machine) take(w *Waiter) TakeResult {
	grant, took := m.o.Slots.Take(&w.request, w.reservation)
	if took == Taken {
		w.grant = grant
		w.queue.spend(w)
		m.apply(w, Slot)
	}
	return took
}

// turnAway ends those that have no slot where nobody waits for one.
func (m *Machine) turnAway(q *queue) {
	for w := range q.inTurn() {
		for w.state == Admitted {
			if took := m.take(w); took == Taken || took == Later {
				break
			}
			if !m.o.Slots.Next(&w.request) {
				w.err = ErrNoQueue
				m.apply(w, Refuse)
			}
		}
	}
}
