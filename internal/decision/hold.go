// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"errors"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/sitemap"
)

// hold lets the request wait for its model.
func (x *run) hold(p sitemap.Placement) verdict {
	budget := cmp.Or(p.HoldBudget, x.o.HoldBudget)
	impatient := x.r.Patience >= 0 && x.r.Patience < budget
	if impatient {
		budget = x.r.Patience
	}
	if budget <= 0 { // the client does not want to wait at all
		return x.notHeld(holdstate.ErrExpired, holdstate.OutcomeExpired)
	}
	w, err := x.do.hold(x.waiting())
	switch {
	case errors.Is(err, holdstate.ErrFull):
		return x.notHeld(err, holdstate.OutcomeFull)
	case err != nil:
		return x.notHeld(err, holdstate.Pending)
	}
	x.trace.held()
	return verdict{Waiter: w, Held: true, Budget: budget, Impatient: impatient}
}

// notHeld refuses a request that cannot be held.
func (x *run) notHeld(err error, counted holdstate.Outcome) verdict {
	x.trace.failed(err)
	v := refuse(refusal.For(err, refusal.Wait{Model: x.r.Model, Impatient: errors.Is(err, holdstate.ErrExpired), Wakes: x.o.Machine}))
	v.Outcome = counted
	return v
}

// begin completes a decision to hold the request. It may come to nothing: the key may have
// ended while the body came, before there was a waiter to end.
func (c *call) begin(r *extproc.Request, d extproc.Decision) extproc.Decision {
	c.held = true
	if no := c.Recheck(); no != nil {
		d.Waiter.Report(holdstate.Revoke)
		s := d.Waiter.Report(holdstate.Leave)
		if s.Grant != nil {
			s.Grant.Release()
		}
		return extproc.Decision{Refusal: no, Outcome: s.Outcome}
	}
	// The model may have been wanted already, but not for this kind.
	c.d.o.Events.Waits(r.Model)
	c.d.o.Log.Info().Str("model", r.Model).Stringer("kind", r.Endpoint.Kind).Str("request_id", r.ID).Msg("request held")
	return d
}
