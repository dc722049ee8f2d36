// SPDX-License-Identifier: Apache-2.0

package holdstate

// queues are the two queues of a target.
type queues struct {
	serving bool // a replica serves the target
	recheck bool // the gate is tried for every waiter, not only for the head of each queue
	// priority has the requests that were held, and those whose replica gave no answer.
	priority queue
	ordinary queue
}

// all returns both queues, the one that is served first in front.
func (qs *queues) all() [2]*queue { return [...]*queue{&qs.priority, &qs.ordinary} }

func (qs *queues) empty() bool { return qs.priority.n+qs.ordinary.n == 0 }

// each calls f for every waiter. f may take the waiter out of its queue.
func (qs *queues) each(f func(*Waiter)) {
	for _, q := range qs.all() {
		q.each(f)
	}
}

// advance gives waiters reservations and free slots, in the order of the queues.
func (qs *queues) advance(depth int) {
	blocked := false
	for _, q := range qs.all() {
		if q.gated > 0 && (qs.recheck || !blocked) {
			blocked = q.reserve(blocked, qs.recheck)
		}
	}
	qs.recheck = false
	for _, q := range qs.all() {
		if full := q.grant(); full {
			break
		}
	}
	if depth == 0 {
		for _, q := range qs.all() {
			q.refuseUnserved()
		}
	}
}

// reserve makes reservations until a waiter does not fit, because nobody overtakes it. It
// reports whether one did not fit. blocked means that one before this queue did not. Those
// behind it are tried only with recheck, since each freed slot would try all of them.
func (q *queue) reserve(blocked, recheck bool) bool {
	for w := range q.inTurn() {
		if w.state != Released {
			continue
		}
		if blocked && !recheck {
			break
		}
		r, err := w.request.Claim.Admit(blocked)
		switch {
		case err != nil:
			w.refuse(err)
		case r == nil:
			blocked = true
		default:
			w.reservation = r
			w.apply(Reserved)
		}
	}
	return blocked
}

// grant gives out free slots, and reports whether none is left. A slot ends the turn of
// its key, so the search for the next waiter starts again.
func (q *queue) grant() (full bool) {
	for more := q.n > q.gated; more; {
		more = false
		for w := range q.inTurn() {
			if w.state != Admitted {
				continue
			}
			result := w.take()
			if more = result == Taken; more {
				break
			}
			if result == Full {
				return true
			}
		}
	}
	return false
}

// refuseUnserved refuses the waiters that have a reservation and no slot. It is for a
// machine without queue.
func (q *queue) refuseUnserved() {
	for w := range q.inTurn() {
		for w.state == Admitted {
			if result := w.take(); result == Taken || result == Later {
				break
			}
			if !w.request.Claim.Next() {
				w.refuse(ErrNoQueue)
			}
		}
	}
}

// take takes a slot for an admitted waiter.
func (w *Waiter) take() TakeResult {
	grant, result := w.request.Claim.Take(w.reservation)
	if result == Taken {
		w.grant = grant
		w.queue.endTurn(w)
		w.apply(Slot)
	}
	return result
}

// refuse ends a waiter that can get no reservation or no slot.
func (w *Waiter) refuse(why error) {
	w.err = why
	w.apply(Refuse)
}
