// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/refusal"
)

// call is the decision's handle for one request. It is the extproc.Call.
type call struct {
	d        *Decider
	key      *access.Key
	hops     int // how often the request was redirected before
	forward  extproc.Forward
	verified *hop.Verified // a token for which the body is not checked yet; nil: none
	resumed  bool          // an earlier process has authenticated the request

	// The quota is charged once per request, however often it is decided.
	charged   bool
	rateLimit string // what the quota had left; empty: the key has no quota

	held     bool // the request was held
	attempts admission.Attempts
	seq      uint64 // its place in the order of arrival, if it got a slot without waiting; 0: none
}

// Caller is part of extproc.Call.
func (c *call) Caller() extproc.Caller {
	if c.resumed {
		return extproc.Caller{}
	}
	return extproc.Caller{TenantID: c.key.Tenant, KeyID: c.key.ID}
}

// Forward is part of extproc.Call.
func (c *call) Forward() extproc.Forward { return c.forward }

// CheckBody is part of extproc.Call.
func (c *call) CheckBody(r *extproc.Request) *refusal.Refusal {
	v := c.verified
	if v == nil {
		return nil
	}
	c.verified = nil
	return c.d.checkBody(v, r.BodySum())
}

// Resolve is part of extproc.Call.
func (c *call) Resolve(name string) string { return c.d.o.Policies().Resolve(name) }

// Decide is part of extproc.Call.
func (c *call) Decide(r *extproc.Request) extproc.Decision {
	decision := run{Decider: c.d, call: c, req: r, do: (*acting)(c)}
	v := decision.decide()
	events := &c.d.o.Events
	switch {
	case v.rejected != nil:
		events.Rejected(r.Model, v.rejected)
		if v.freed {
			c.d.o.Machine.Update(r.Target()) // others may have the reservation
		}
	case v.Grant != nil && c.seq == 0:
		// If its replica fails, it waits before all requests that arrived later.
		c.seq = c.d.o.Machine.Place(r.Arrived)
	case v.Held:
		v.Decision = c.begin(r, v.Decision)
	case v.Outcome == holdstate.OutcomeExpired && !c.held:
		events.HoldEnded(v.Outcome, 0)
	}
	v.RateLimit = c.rateLimit
	return v.Decision
}

// Recheck is part of extproc.Call.
func (c *call) Recheck() *refusal.Refusal { return c.d.recheck(c.key) }
