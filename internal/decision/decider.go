// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/sitemap"
)

// Options are the settings and the collaborators of a Decider. The comment of a field says
// whether it may be nil.
type Options struct {
	SiteID      string        // empty: the router redirects nothing, and holds for backends only
	HoldBudget  time.Duration // of a placement without its own
	GraceUntil  time.Time     // until then the agent of a model may still be registering
	Identities  bool          // filters of Envoy may set the caller's identity
	ForwardKeys bool          // engines get the callers' keys
	// Destination is how the requests of a model without a destination in its policy are sent
	// on; empty: to replicas.
	Destination policy.Destination
	// Fallbacks is how many replicas after the first a gateway is told of.
	Fallbacks int

	Keys     *access.Store // nil: no keys file
	Secrets  *hop.Secrets  // nil: hops are counted, and their tokens not signed
	Maps     *sitemap.Store
	Backends *backend.Set
	Registry *agentreg.Registry
	Machine  *holdstate.Machine
	Capacity *admission.Capacity
	Policies func() *policy.Policy
	Engines  *enginekey.File // nil: no keys of engines
	Holds    Holds           // nil: the site has no other routers
	Site     Site            // nil: the site has no other routers
	Log      zerolog.Logger

	Events Events
}

// Site is what explain says of the other routers of the site.
type Site interface {
	// Up reports whether they are known.
	Up() bool
	// Demand returns the number of distinct requests that wait for a model on all routers.
	Demand(model string) int
}

// Holds are the limits of held requests over all routers of the site.
type Holds interface {
	// Hold reports whether the limits allow one more held request, and if so counts it
	// until Leave. key may be empty.
	Hold(model, key string) (counted holdstate.SiteHold, fits bool)
	// WouldHold returns what Hold would report now.
	WouldHold(model, key string) (fits bool)
}

// Events are callbacks. None of them may be nil.
type Events struct {
	// Waits is called when a request waits for a model, whose need may have changed.
	Waits func(model string)
	// HoldEnded is called when a request is refused that would have been held.
	HoldEnded func(o holdstate.Outcome, held time.Duration)
	// Rejected is called when a request gets no reservation or no slot.
	Rejected func(model string, err error)
	// TokenRejected is called when the token of a redirected request is not valid.
	TokenRejected func(err error)
}

// Decider decides what happens to each request, from snapshots of the map, the registry
// and the files. It is the extproc.Decider.
type Decider struct {
	o Options
	authenticator
}

// New makes a decider.
func New(o Options) *Decider {
	return &Decider{
		o:    o,
		keys: o.Keys, identities: o.Identities, forward: o.ForwardKeys, secrets: o.Secrets, rejected: o.Events.TokenRejected,
	}
}

// Authenticate is part of extproc.Decider.
func (d *Decider) Authenticate(cr extproc.Credentials) (extproc.Call, *refusal.Refusal) {
	c := &call{d: d}
	if why := d.authenticate(c, cr); why != nil {
		return nil, why
	}
	return c, nil
}

// Resume is part of extproc.Decider. The request may use every model, and is not redirected.
func (d *Decider) Resume() extproc.Call {
	return &call{d: d, key: access.Anonymous(), hops: sitemap.MaxHops, resumed: true}
}
