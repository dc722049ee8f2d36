// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"time"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/sitemap"
)

// run is one decision, on a request or for explain.
type run struct {
	*Decider
	call  *call
	req   *extproc.Request
	do    effects
	trace *trace // for explain; nil: none
}

// verdict is the result of a run.
type verdict struct {
	extproc.Decision

	queued   bool  // the request waits for a reservation or a slot of a replica that serves
	rejected error // why it got no reservation or no slot
	freed    bool  // it released a reservation
}

func refuse(r *refusal.Refusal) verdict { return verdict{Refusal: r} }

// decide goes through the steps that doc.go lists. The first one that returns decides.
func (r *run) decide() verdict {
	t := r.req.Target()
	r.trace.step(stepAllowlist)
	if !r.call.key.Allowed(t.Model) {
		r.trace.why("the model is not in the models of the key")
		return refuse(refusal.ModelForbidden(t.Model))
	}
	r.trace.why("the caller may use the model")

	r.trace.step(stepServedHere)
	r.trace.replicas()
	if replicas := r.o.Registry.Serving(t); replicas > 0 {
		return r.served(replicas)
	}

	r.trace.step(stepMap)
	state := r.o.Maps.State()
	p, here := Placements{state.Map, r.o.Backends}.Here(t)
	m := state.Map
	if r.o.SiteID == "" {
		m = nil
	}
	switch {
	case m != nil:
		r.trace.loaded(state)
	case here:
		r.trace.why("there is no sibling map, and a backend of this router needs none")
	case r.o.SiteID == "":
		r.trace.why("the router has no --site-id, so it redirects and holds nothing")
		return refuse(r.absent(false))
	default:
		r.trace.why("no sibling map was pushed or restored yet")
		return refuse(refusal.MapNotLoaded())
	}

	// A request to count tokens is redirected like the request whose tokens it counts.
	r.trace.step(stepRedirect)
	if to := r.redirect(m, here && p.ScaleFromZero); to != nil {
		return verdict{Redirect: to}
	}

	r.trace.step(stepHold)
	switch {
	case !here:
		r.trace.why("the map does not place the model at this site for this kind")
	case !p.ScaleFromZero:
		r.trace.why("the map places the model here without scale_from_zero")
	case r.req.Endpoint.CountTokens:
		r.trace.why("requests to count tokens are not held")
	default:
		r.trace.placed()
		// A model that sleeps counts as one replica, so that the quota limits holds too.
		if refused := r.charge(1); refused != nil {
			return refuse(refused)
		}
		return r.hold(p)
	}

	r.trace.step(stepNotServed)
	refused := r.absent(here && !p.ScaleFromZero)
	r.trace.notServed(refused)
	return refuse(refused)
}

// hinted reports whether the gateway allows a replica in routing, if it restricts the request.
func (r *run) hinted() bool {
	if r.req.Hint == nil {
		return true
	}
	r.waiting() // sets the attempts
	return r.call.attempts.Hinted()
}

// served decides a request whose target has replicas in routing.
func (r *run) served(replicas int) verdict {
	if !r.hinted() {
		r.trace.why("the gateway allows no replica of the model")
		return refuse(refusal.NotHinted(r.req.Model))
	}
	if refused := r.charge(replicas); refused != nil {
		return refuse(refused)
	}
	return r.serve()
}

// charge counts the request against the quotas of its key.
func (r *run) charge(replicas int) *refusal.Refusal {
	refused := r.do.charge(r.req.Model, replicas)
	if refused != nil {
		r.trace.why("the quota of the key is used up")
	}
	return refused
}

// absent returns the refusal for a model that no replica serves and that may not be held.
// fixed means that the map places the model here: its agent may still be registering.
func (r *run) absent(fixed bool) *refusal.Refusal {
	switch {
	case r.call.attempts.Unanswered():
		return refusal.BackendError(r.req.Model)
	case fixed && time.Now().Before(r.o.GraceUntil):
		return refusal.RegistryWarming(r.req.Model)
	}
	return refusal.ModelNotFound(r.req.Model)
}

// redirect returns where the request is redirected to, nil when it stays here.
func (r *run) redirect(m *sitemap.Map, mayHold bool) *extproc.Redirect {
	key := r.call.key
	switch {
	case m == nil:
		r.trace.why("without a sibling map no other site is known")
		return nil
	case key.RedirectNever:
		r.trace.why("the key has redirect: never")
		return nil
	}
	choice := r.trace.pick(m, sitemap.Query{
		Target: r.req.Target(), Key: cmp.Or(key.ID, key.Tenant), Scopes: key.Scopes, Hops: r.call.hops, CanHoldHere: mayHold,
	})
	if !choice.Redirect {
		return nil
	}
	token, err := r.do.token(r.req, choice.Site.ID)
	if err != nil {
		r.o.Log.Error().Err(err).Msg("signing a hop token: the request is not redirected")
		return nil
	}
	return &extproc.Redirect{Site: choice.Site.ID, Location: sitemap.Location(choice.Site, r.req.PathAndQuery, token)}
}
