// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"strings"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/policy"
)

// Engine is part of extproc.Call. Requests to a backend are changed as its configuration
// says. Requests to other engines, and to a backend without a key, get the key of the model.
func (c *call) Engine(model string, g holdstate.Grant) extproc.Engine {
	return c.d.engine(model, g.Replica())
}

// Returned is part of extproc.Decider.
func (d *Decider) Returned(model string, at holdstate.Replica) (extproc.Forward, extproc.Engine) {
	return extproc.Forward{StripKeys: d.strips()}, d.engine(model, at)
}

// Destination is part of extproc.Call.
func (c *call) Destination(model string) extproc.Destination {
	switch c.d.destination(model) {
	case policy.Route:
		return extproc.ByRoute
	case policy.Endpoint:
		return extproc.AsPicker
	case policy.Replica:
	}
	return extproc.ToReplica
}

// destination returns how the requests of a model are sent on from a gateway.
func (d *Decider) destination(model string) policy.Destination {
	return d.o.Policies().Destination(model, d.o.Destination)
}

// Picked is part of extproc.Call. The request needs its hint no more, and may run for long.
func (c *call) Picked(g holdstate.Grant) string {
	defer func() { c.attempts.Hint = nil }()
	if slot, real := g.(*admission.Grant); real && c.d.o.Fallbacks > 0 {
		return strings.Join(slot.Picked(1+c.d.o.Fallbacks), ",")
	}
	return g.Replica().Address
}

// Picks is part of extproc.Decider.
func (d *Decider) Picks() bool { return d.o.Policies().Uses(policy.Endpoint, d.o.Destination) }

func (d *Decider) engine(model string, at holdstate.Replica) (e extproc.Engine) {
	o := &d.o
	if at.Engine == engines.Ollama { // it refuses unknown hosts and origins
		e.Host, e.NoOrigin = at.Address, true
	}
	if w, own := o.Backends.Upstream(at.ID); own {
		e.Host, e.Prefix, e.TLS, e.SNI, e.Pool, e.NotTaken = w.Host, w.Prefix, w.CAFile, w.SNI, w.Pool, w.NotTaken
		if w.Key != "" {
			e.KeyHeader, e.Key = "authorization", "Bearer "+w.Key
		}
	}
	if e.KeyHeader == "" && o.Engines != nil {
		e.KeyHeader, e.Key = o.Engines.Current().Of(model)
	}
	return e
}
