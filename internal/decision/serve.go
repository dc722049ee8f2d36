// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"errors"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// serve gives the request a slot, or a place among those that wait for a reservation or
// for a slot.
func (x *run) serve() verdict {
	q := x.waiting()
	q.Bytes = 0 // only held bodies count against the limit of held bytes
	// Newcomers stand behind those that wait already.
	if !x.o.Machine.Waiting(q.Target) {
		var err error
		if q.Reservation, err = q.Claim.Admit(false); err != nil {
			return x.reject(&q, err)
		}
		if g, taken := take(&q); taken {
			return verdict{Grant: g}
		}
	}
	w, err := x.do.queue(q)
	if err == nil {
		x.trace.queued(q.Reservation != nil)
		return verdict{Waiter: w, queued: true}
	}
	if !errors.Is(err, holdstate.ErrNoQueue) {
		return x.reject(&q, err)
	}
	g, err := x.further(&q)
	if err != nil {
		return x.reject(&q, err)
	}
	x.trace.why("a further step of the policy has a slot")
	return verdict{Grant: g}
}

// waiting returns the request as one that waits.
func (x *run) waiting() holdstate.Request {
	c, r := x.who, x.r
	a := &c.attempts
	if a.Key == nil {
		// Whether the model has a token budget does not matter: a reload of the policy
		// may add one while the request waits.
		*a = x.o.Capacity.Attempts(r.Target(), c.key, r.Footprint())
	}
	a.Target = r.Target()
	return holdstate.Request{
		Target: a.Target, Key: c.key.QueueKey(), ClientIDs: r.ClientIDs, Bytes: r.BodySize,
		Seq: cmp.Or(r.Seq, c.seq), Retry: a.Unanswered(), Counted: c.held, Claim: x.do.claim(),
	}
}

// take takes a slot for a request that has a reservation.
func take(q *holdstate.Request) (g holdstate.Grant, taken bool) {
	if q.Reservation == nil {
		return nil, false
	}
	g, result := q.Claim.Take(q.Reservation)
	return g, result == holdstate.Taken
}

// further is for a request that may not wait: it takes a slot of the policy's further
// steps, if one is free.
func (x *run) further(q *holdstate.Request) (holdstate.Grant, error) {
	if q.Reservation == nil {
		if gated, _ := x.o.Machine.Depths(q.Target.Model); gated > 0 && !q.Retry {
			return nil, holdstate.ErrGateFull // nobody overtakes those that wait for one
		}
		var err error
		if q.Reservation, err = q.Claim.Admit(false); err != nil {
			return nil, err
		}
		if q.Reservation == nil {
			return nil, holdstate.ErrGateFull
		}
	}
	for q.Claim.Next() {
		if g, taken := take(q); taken {
			return g, nil
		}
	}
	return nil, holdstate.ErrNoQueue
}

// reject refuses a request that may not wait.
func (x *run) reject(q *holdstate.Request, err error) verdict {
	x.trace.failed(err)
	v := refuse(refusal.For(err, refusal.Wait{Model: x.r.Model}))
	v.rejected = err
	if q.Reservation != nil {
		q.Reservation.Release()
		v.freed = true
	}
	return v
}
