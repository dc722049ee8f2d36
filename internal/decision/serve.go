// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"errors"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// serve gives the request a slot, or makes it wait for a reservation or a slot, or refuses
// it.
func (r *run) serve() verdict {
	q := r.waiting()
	q.Bytes = 0 // only held bodies count against the limit of held bytes
	// A new request may not overtake those that wait already.
	if !r.o.Machine.Waiting(q.Target) {
		var err error
		if q.Reservation, err = q.Claim.Admit(false); err != nil {
			return r.reject(&q, err)
		}
		if g, taken := take(&q); taken {
			return verdict{Grant: g}
		}
	}
	w, err := r.do.queue(q)
	if err == nil {
		r.trace.queued(q.Reservation != nil)
		return verdict{Waiter: w, queued: true}
	}
	if !errors.Is(err, holdstate.ErrNoQueue) {
		return r.reject(&q, err)
	}
	g, err := r.further(&q)
	if err != nil {
		return r.reject(&q, err)
	}
	r.trace.why("a further step of the policy has a slot")
	return verdict{Grant: g}
}

// waiting returns the request as the hold machine needs it.
func (r *run) waiting() holdstate.Request {
	a := &r.call.attempts
	if a.Key == nil {
		// The footprint is measured even if the model has no token budget, because a reload
		// of the policy may add one while the request waits.
		*a = r.o.Capacity.Attempts(r.req.Target(), r.call.key, r.req.Footprint())
	}
	a.Target, a.Hint = r.req.Target(), r.req.Hint
	return holdstate.Request{
		Target: a.Target, Key: r.call.key.QueueKey(), KeyID: r.call.key.ID, Tenant: r.call.key.Tenant, ClientIDs: r.req.ClientIDs, Bytes: r.req.BodySize,
		Seq: cmp.Or(r.req.Seq, r.call.seq), Retry: a.Unanswered(), Counted: r.call.held, Claim: r.do.claim(),
	}
}

// take takes a slot if the request has a reservation.
func take(q *holdstate.Request) (g holdstate.Grant, taken bool) {
	if q.Reservation == nil {
		return nil, false
	}
	g, result := q.Claim.Take(q.Reservation)
	return g, result == holdstate.Taken
}

// further takes a free slot of the policy's further steps, for a request that may not wait.
func (r *run) further(q *holdstate.Request) (holdstate.Grant, error) {
	if q.Reservation == nil {
		if gated, _ := r.o.Machine.Depths(q.Target.Model); gated > 0 && !q.Retry {
			return nil, holdstate.ErrGateFull // it may not overtake those that wait for one
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

// reject refuses a request that may not wait, and releases its reservation.
func (r *run) reject(q *holdstate.Request, err error) verdict {
	r.trace.failed(err)
	v := refuse(refusal.For(err, refusal.Wait{Model: r.req.Model}))
	v.rejected = err
	if q.Reservation != nil {
		q.Reservation.Release()
		v.freed = true
	}
	return v
}
