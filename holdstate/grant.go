// SPDX-License-Identifier: Apache-2.0

package holdstate

// queues are the two queues of a target.
type queues struct {
	serving bool // a replica serves the target
	recheck bool // the next advance calls Admit for every waiter, not only up to the first that does not fit
	// priority has the requests that were held, and those whose replica gave no answer.
	priority queue
	ordinary queue
}

// all returns both queues in the order in which they are served.
func (qs *queues) all() [2]*queue { return [...]*queue{&qs.priority, &qs.ordinary} }

func (qs *queues) empty() bool { return qs.priority.n+qs.ordinary.n == 0 }

// each calls f for every waiter. f may take the waiter out of its queue.
func (qs *queues) each(f func(*Waiter)) {
	for _, q := range qs.all() {
		q.each(f)
	}
}

// advance gives waiters reservations and free slots, in order. depth is Limits.QueueDepth.
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

// reserve makes reservations for waiters in order until one does not fit, and reports
// whether one did not: no other waiter may overtake it. blocked means that one of an earlier
// queue did not fit. Waiters after the first that does not fit are checked, for errors, only
// with recheck, because checking all of them at every freed slot would take too long.
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

// grant gives out free slots, and reports whether none is left. Each slot that is taken ends
// the turn of a key and changes the order, so the search then starts again.
func (q *queue) grant() (full bool) {
	for again := q.n > q.gated; again; {
		again = false
		for w := range q.inTurn() {
			if w.state != Admitted {
				continue
			}
			result := w.take()
			if result == Full {
				return true
			}
			if result == Taken {
				again = true
				break
			}
		}
	}
	return false
}

// refuseUnserved refuses the waiters that have a reservation and no slot, where requests may
// not wait for a slot.
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

// refuse ends a waiter that will never get a reservation or a slot.
func (w *Waiter) refuse(why error) {
	w.err = why
	w.apply(Refuse)
}
