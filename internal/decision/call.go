// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"strconv"
	"time"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/refusal"
)

// call is the decision's handle for one request. It is the extproc.Call.
type call struct {
	d       *Decider
	key     *access.Key
	hops    int // how often the request was redirected before
	forward extproc.Forward
	token   *hop.Verified // for the body that is not checked yet; nil: none
	resumed bool          // an earlier process has found its caller

	// The quota is charged once per request, however often it is decided.
	charged   bool
	rateLimit string // what the quota still had; empty: it has none

	held     bool // a hold of it was counted
	attempts admission.Attempts
	seq      uint64 // its place, once it had a slot without waiting for it; 0: none
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
	v := c.token
	if v == nil {
		return nil
	}
	c.token = nil
	return c.d.checkBody(v, r.BodySum())
}

// Resolve is part of extproc.Call.
func (c *call) Resolve(name string) string { return c.d.o.Policies().Resolve(name) }

// Decide is part of extproc.Call.
func (c *call) Decide(r *extproc.Request) extproc.Decision {
	decision := c.d.decide(r, c)
	decision.RateLimit = c.rateLimit
	return decision
}

// Recheck is part of extproc.Call.
func (c *call) Recheck() *refusal.Refusal { return c.d.recheck(c.key) }

// charge counts the request against its key's quotas. It returns a refusal when they
// are used up.
func (c *call) charge(model string, replicas int) *refusal.Refusal {
	if c.charged {
		return nil
	}
	result := c.key.Charge(model, replicas, time.Now())
	if result.Remaining != access.Unlimited {
		c.rateLimit = strconv.Itoa(result.Remaining)
	}
	if !result.OK {
		return refusal.RateLimited(result.RetryAfter)
	}
	c.charged = true
	return nil
}
