// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"errors"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// serve gives the request a slot, or a place among those who wait for room or for a
// slot.
func (d *Decider) serve(r *extproc.Request, who *call) extproc.Decision {
	model, q := r.Model, d.waiting(r, who)
	q.Bytes = 0 // only held bodies count against the limit of held bytes
	// Newcomers stand behind those that wait already.
	if !d.o.Machine.Waiting(q.Target) {
		room, err := q.Claim.Admit(false)
		if err != nil {
			return d.turnedAway(model, err)
		}
		q.Reservation = room
		if g, took := d.take(&q); took {
			return d.granted(g, who)
		}
	}
	w, err := d.o.Machine.Queue(q)
	if err == nil {
		return extproc.Decision{Waiter: w}
	}
	if errors.Is(err, holdstate.ErrNoQueue) {
		g, why := d.further(&q)
		if g != nil {
			return d.granted(g, who)
		}
		err = why
	}
	if q.Reservation != nil {
		q.Reservation.Release()
		d.o.Machine.Update(q.Target) // somebody else may have that room
	}
	return d.turnedAway(model, err)
}

// granted serves a request that did not wait. Should its replica fail, it has a place
// before all who came later.
func (d *Decider) granted(g holdstate.Grant, who *call) extproc.Decision {
	if who.seq == 0 {
		who.seq = d.o.Machine.Place()
	}
	return extproc.Decision{Grant: g}
}

// take takes a slot for a request that has room.
func (d *Decider) take(q *holdstate.Request) (holdstate.Grant, bool) {
	if q.Reservation == nil {
		return nil, false
	}
	g, took := q.Claim.Take(q.Reservation)
	return g, took == holdstate.Taken
}

// further is for a request that may not wait: it takes a slot of the policy's
// further steps, if one is free.
func (d *Decider) further(q *holdstate.Request) (holdstate.Grant, error) {
	if q.Reservation == nil {
		if !q.Retry && d.roomAwaited(q.Target.Model) {
			return nil, holdstate.ErrNoRoom
		}
		room, err := q.Claim.Admit(false)
		if err != nil {
			return nil, err
		}
		if room == nil {
			return nil, holdstate.ErrNoRoom
		}
		q.Reservation = room
	}
	for q.Claim.Next() {
		if g, took := d.take(q); took {
			return g, nil
		}
	}
	return nil, holdstate.ErrNoQueue
}

// roomAwaited says whether requests for a model wait for room: nobody overtakes them.
func (d *Decider) roomAwaited(model string) bool {
	gate, _ := d.o.Machine.Depths(model)
	return gate > 0
}

// turnedAway refuses a request that may not wait.
func (d *Decider) turnedAway(model string, err error) extproc.Decision {
	d.o.Events.Rejected(model, err)
	return refuse(refusal.For(err, refusal.Wait{Model: model}))
}
