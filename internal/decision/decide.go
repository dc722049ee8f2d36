// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"errors"
	"strconv"
	"time"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// decide says what happens to a request whose body was read.
func (d *Decider) decide(r *extproc.Request, who *call) extproc.Decision {
	t := r.Target()
	if !who.key.Allowed(r.Model) {
		return refuse(refusal.ModelForbidden(r.Model))
	}

	// Served here.
	if replicas := d.o.Registry.Serving(t); replicas > 0 {
		if why := who.charge(r.Model, replicas); why != nil {
			return refuse(why)
		}
		return d.serve(r, who)
	}

	now := d.placements()
	p, here := now.Here(t)
	mayHold := here && p.ScaleFromZero
	switch {
	case here: // a backend's model needs no map
	case d.o.SiteID == "":
		return refuse(d.absent(r.Model, who, false))
	case now.Map == nil:
		return refuse(refusal.MapNotLoaded())
	}

	// Served by a sibling. Tokens are counted where the request itself would go.
	if to := d.sibling(now.Map, r, who, mayHold); to != nil {
		return extproc.Decision{Redirect: to}
	}

	// Held here.
	switch {
	case mayHold && !r.Endpoint.CountTokens:
		// A model that sleeps counts as one replica, so that nobody holds requests
		// past a quota.
		if why := who.charge(r.Model, 1); why != nil {
			return refuse(why)
		}
		return d.hold(r, who, p)
	default:
		return refuse(d.absent(r.Model, who, here && !p.ScaleFromZero))
	}
}

// notHere is the answer for a model that no replica serves and that may not be
// held. A fixed one is placed here, and its agent may still be registering.
func (d *Decider) notHere(model string, fixed bool) *refusal.Refusal {
	if fixed && time.Now().Before(d.o.GraceUntil) {
		return refusal.RegistryWarming(model)
	}
	return refusal.ModelNotFound(model)
}

// absent is notHere for a request, whose last replica may have died under it.
func (d *Decider) absent(model string, who *call, fixed bool) *refusal.Refusal {
	if who.attempts.Again() {
		return refusal.BackendError(model)
	}
	return d.notHere(model, fixed)
}

// asks is what the caller's request asks of the map.
func (c *call) asks(t target.Target, mayHold bool) sitemap.Query {
	return sitemap.Query{
		Target: t, Key: cmp.Or(c.key.ID, c.key.Tenant), Scopes: c.key.Scopes,
		Hops: c.hops, CanHoldHere: mayHold,
	}
}

// sibling is the site that the caller is sent to, nil when the request stays here.
func (d *Decider) sibling(m *sitemap.Map, r *extproc.Request, who *call, mayHold bool) *extproc.Redirect {
	if m == nil || d.o.SiteID == "" || who.key.RedirectNever {
		return nil
	}
	choice := m.Pick(who.asks(r.Target(), mayHold), time.Now())
	if !choice.Redirect {
		return nil
	}
	token := strconv.Itoa(who.hops + 1)
	if d.secrets != nil {
		var err error
		token, err = d.secrets.Sign(hop.Claims{
			Site: d.o.SiteID, To: choice.Site.ID, KeyID: who.key.ID, Hops: who.hops + 1,
			Method: r.Method, PathAndQuery: r.PathAndQuery, Body: r.BodySum(),
		})
		if err != nil {
			d.o.Log.Error().Err(err).Msg("signing a hop token: the request is not redirected")
			return nil
		}
	}
	return &extproc.Redirect{Site: choice.Site.ID, Location: sitemap.Location(choice.Site, r.PathAndQuery, token)}
}

// hold lets the request wait for its model.
func (d *Decider) hold(r *extproc.Request, who *call, p sitemap.Placement) extproc.Decision {
	budget := cmp.Or(p.HoldBudget, d.o.HoldBudget)
	impatient := r.Patience >= 0 && r.Patience < budget
	if impatient {
		budget = r.Patience
	}
	if budget <= 0 {
		// The client does not want to wait at all.
		if !who.held {
			d.o.Events.HoldEnded(holdstate.OutcomeExpired, 0)
		}
		return extproc.Decision{Refusal: d.notHeld(r.Model, holdstate.ErrExpired), Outcome: holdstate.OutcomeExpired}
	}
	w, err := d.o.Machine.Hold(d.waiting(r, who))
	if err != nil {
		no := refuse(d.notHeld(r.Model, err))
		if errors.Is(err, holdstate.ErrFull) {
			no.Outcome = holdstate.OutcomeFull
		}
		return no
	}
	who.held = true
	// The key may have ended while the body came, before there was a waiter to end.
	if why := who.Recheck(); why != nil {
		w.Tell(holdstate.Revoke)
		s := w.Tell(holdstate.Leave)
		if s.Grant != nil {
			s.Grant.Release()
		}
		return extproc.Decision{Refusal: why, Outcome: s.Outcome}
	}
	// The model may have been wanted already, but not for this kind.
	d.o.Events.Waits(r.Model)
	d.o.Log.Info().Str("model", r.Model).Stringer("kind", r.Endpoint.Kind).Str("request_id", r.ID).Msg("request held")
	return extproc.Decision{Waiter: w, Held: true, Budget: budget, Impatient: impatient}
}

// notHeld returns the answer to a request that cannot be held, for the reason why.
func (d *Decider) notHeld(model string, why error) *refusal.Refusal {
	return refusal.For(why, refusal.Wait{Model: model, Impatient: errors.Is(why, holdstate.ErrExpired), Wakes: d.o.Machine})
}

// waiting is the request as one that waits.
func (d *Decider) waiting(r *extproc.Request, who *call) holdstate.Request {
	a := &who.attempts
	if a.Key == nil {
		// Whether the model has a token budget does not matter: a reload of the policy
		// may add one while the request waits.
		*a = d.o.Capacity.Attempts(r.Target(), who.key, r.Footprint())
	}
	a.Target = r.Target()
	return holdstate.Request{
		Target: a.Target, Key: who.key.Line(), ClientIDs: r.ClientIDs, Bytes: r.BodySize,
		Seq: cmp.Or(r.Seq, who.seq), Retry: a.Again(), Counted: who.held, Claim: a,
	}
}

func refuse(r *refusal.Refusal) extproc.Decision { return extproc.Decision{Refusal: r} }
