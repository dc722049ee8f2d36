// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"time"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/sitemap"
)

// run is one decision: about a request, or about what explain was asked.
type run struct {
	*Decider
	who   *call
	r     *extproc.Request
	do    effects
	trace *trace // nil: nobody reads it
}

// verdict is what came of a run.
type verdict struct {
	extproc.Decision

	queued   bool  // it waits for a reservation or a slot of a replica that serves
	rejected error // why it got no reservation or no slot
	freed    bool  // it gave a reservation back
}

func refuse(r *refusal.Refusal) verdict { return verdict{Refusal: r} }

// decide goes through the steps that doc.go lists. The first one that returns decides.
func (x *run) decide() verdict {
	t := x.r.Target()
	x.trace.step(stepAllowlist)
	if !x.who.key.Allowed(t.Model) {
		x.trace.why("the model is not in the models of the key")
		return refuse(refusal.ModelForbidden(t.Model))
	}
	x.trace.why("the caller may use the model")

	x.trace.step(stepServedHere)
	x.trace.replicas()
	if replicas := x.o.Registry.Serving(t); replicas > 0 {
		if no := x.charge(replicas); no != nil {
			return refuse(no)
		}
		return x.serve()
	}

	x.trace.step(stepMap)
	state := x.o.Maps.State()
	p, here := Placements{state.Map, x.o.Backends}.Here(t)
	m := state.Map
	if x.o.SiteID == "" {
		m = nil
	}
	switch {
	case m != nil:
		x.trace.loaded(state)
	case here:
		x.trace.why("there is no sibling map, and a backend of this router needs none")
	case x.o.SiteID == "":
		x.trace.why("the router has no --site-id, so it redirects and holds nothing")
		return refuse(x.absent(false))
	default:
		x.trace.why("no sibling map was pushed or restored yet")
		return refuse(refusal.MapNotLoaded())
	}

	// Tokens are counted where the request itself would go.
	x.trace.step(stepRedirect)
	if to := x.redirect(m, here && p.ScaleFromZero); to != nil {
		return verdict{Redirect: to}
	}

	x.trace.step(stepHold)
	switch {
	case !here:
		x.trace.why("the map does not place the model at this site for this kind")
	case !p.ScaleFromZero:
		x.trace.why("the map places the model here without scale_from_zero")
	case x.r.Endpoint.CountTokens:
		x.trace.why("no request waits for its tokens to be counted")
	default:
		x.trace.placed()
		// A model that sleeps counts as one replica, so that nobody holds requests past a
		// quota.
		if no := x.charge(1); no != nil {
			return refuse(no)
		}
		return x.hold(p)
	}

	x.trace.step(stepNotServed)
	no := x.absent(here && !p.ScaleFromZero)
	x.trace.notServed(no)
	return refuse(no)
}

// charge counts the request against the quotas of its key.
func (x *run) charge(replicas int) *refusal.Refusal {
	no := x.do.charge(x.r.Model, replicas)
	if no != nil {
		x.trace.why("the quota of the key is used up")
	}
	return no
}

// absent returns the refusal for a model that no replica serves and that may not be held.
// The last replica may have died under the request. A fixed model is placed here, and its
// agent may still be registering.
func (x *run) absent(fixed bool) *refusal.Refusal {
	switch {
	case x.who.attempts.Unanswered():
		return refusal.BackendError(x.r.Model)
	case fixed && time.Now().Before(x.o.GraceUntil):
		return refusal.RegistryWarming(x.r.Model)
	}
	return refusal.ModelNotFound(x.r.Model)
}

// redirect returns the site that the caller is sent to, nil when the request stays here.
func (x *run) redirect(m *sitemap.Map, mayHold bool) *extproc.Redirect {
	key := x.who.key
	switch {
	case m == nil:
		x.trace.why("without a sibling map no other site is known")
		return nil
	case key.RedirectNever:
		x.trace.why("the key has redirect: never")
		return nil
	}
	choice := x.trace.pick(m, sitemap.Query{
		Target: x.r.Target(), Key: cmp.Or(key.ID, key.Tenant), Scopes: key.Scopes, Hops: x.who.hops, CanHoldHere: mayHold,
	})
	if !choice.Redirect {
		return nil
	}
	token, err := x.do.token(x.r, choice.Site.ID)
	if err != nil {
		x.o.Log.Error().Err(err).Msg("signing a hop token: the request is not redirected")
		return nil
	}
	return &extproc.Redirect{Site: choice.Site.ID, Location: sitemap.Location(choice.Site, x.r.PathAndQuery, token)}
}
