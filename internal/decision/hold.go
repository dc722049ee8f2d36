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

// hold makes the request wait for its model, or refuses it.
func (r *run) hold(p sitemap.Placement) verdict {
	budget := cmp.Or(p.HoldBudget, r.o.HoldBudget)
	impatient := r.req.Patience >= 0 && r.req.Patience < budget
	if impatient {
		budget = r.req.Patience
	}
	if budget <= 0 { // the client does not want to wait at all
		return r.notHeld(holdstate.ErrExpired, holdstate.OutcomeExpired)
	}
	q := r.waiting()
	// The hint is of this moment, in which there is no replica that it could name.
	r.call.attempts.Hint = nil
	w, err := r.do.hold(q)
	switch {
	case errors.Is(err, holdstate.ErrFull):
		return r.notHeld(err, holdstate.OutcomeFull)
	case err != nil:
		return r.notHeld(err, holdstate.Pending)
	}
	r.trace.held()
	return verdict{Waiter: w, Held: true, Budget: budget, Impatient: impatient}
}

// notHeld refuses a request that cannot be held. counted is the outcome for the metric of
// holds.
func (r *run) notHeld(err error, counted holdstate.Outcome) verdict {
	r.trace.failed(err)
	v := refuse(refusal.For(err, refusal.Wait{Model: r.req.Model, Impatient: errors.Is(err, holdstate.ErrExpired), Wakes: r.o.Machine}))
	v.Outcome = counted
	return v
}

// begin completes a decision to hold the request. It refuses the request if its key became
// invalid while the body was received, when there was no waiter yet that Revoke could end.
func (c *call) begin(r *extproc.Request, d extproc.Decision) extproc.Decision {
	c.held = true
	if refused := c.Recheck(); refused != nil {
		d.Waiter.Report(holdstate.Revoke)
		s := d.Waiter.Report(holdstate.Leave)
		if s.Grant != nil {
			s.Grant.Release()
		}
		return extproc.Decision{Refusal: refused, Outcome: s.Outcome}
	}
	// The machine has reported no change if the model was wanted before, for another kind.
	c.d.o.Events.Waits(r.Model)
	c.d.o.Log.Info().Str("model", r.Model).Stringer("kind", r.Endpoint.Kind).Str("request_id", r.ID).Msg("request held")
	return d
}
