// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"strconv"
	"time"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/refusal"
)

// effects are the operations of a run. acting performs them; looking returns the same results
// without changing anything.
type effects interface {
	// charge counts the request against the quotas of its key. It returns a refusal when
	// they are used up.
	charge(model string, replicas int) *refusal.Refusal
	// claim returns the claim by which the request gets a reservation and a slot.
	claim() holdstate.Claim
	// queue makes the request wait for a reservation and a slot. The waiter of looking is
	// nil.
	queue(q holdstate.Request) (*holdstate.Waiter, error)
	// hold makes the request wait for a replica. The waiter of looking is nil.
	hold(q holdstate.Request) (*holdstate.Waiter, error)
	// token returns the token with which the request is redirected to a site.
	token(r *extproc.Request, site string) (string, error)
}

// acting are the effects for a request.
type acting call

func (a *acting) charge(model string, replicas int) *refusal.Refusal {
	if a.charged {
		return nil
	}
	result := a.key.Charge(model, replicas, time.Now())
	if result.Remaining != access.Unlimited {
		a.rateLimit = strconv.Itoa(result.Remaining)
	}
	if !result.OK {
		return refusal.RateLimited(result.RetryAfter)
	}
	a.charged = true
	return nil
}

func (a *acting) claim() holdstate.Claim { return &a.attempts }

func (a *acting) queue(q holdstate.Request) (*holdstate.Waiter, error) { return a.d.o.Machine.Queue(q) }

func (a *acting) hold(q holdstate.Request) (*holdstate.Waiter, error) { return a.d.o.Machine.Hold(q) }

func (a *acting) token(r *extproc.Request, site string) (string, error) {
	if a.d.o.Secrets == nil {
		return strconv.Itoa(a.hops + 1), nil
	}
	return a.d.o.Secrets.Sign(hop.Claims{
		Site: a.d.o.SiteID, To: site, KeyID: a.key.ID, Hops: a.hops + 1,
		Method: r.Method, PathAndQuery: r.PathAndQuery, Body: r.BodySum(),
	})
}

// looking are the effects for explain.
type looking call

func (l *looking) charge(model string, replicas int) *refusal.Refusal {
	if result := l.key.Peek(model, replicas, time.Now()); !result.OK {
		return refusal.RateLimited(result.RetryAfter)
	}
	return nil
}

func (l *looking) claim() holdstate.Claim { return l.attempts.DryRun() }

func (l *looking) queue(q holdstate.Request) (*holdstate.Waiter, error) {
	return nil, l.d.o.Machine.WouldQueue(q)
}

func (l *looking) hold(q holdstate.Request) (*holdstate.Waiter, error) {
	return nil, l.d.o.Machine.WouldHold(q)
}

func (l *looking) token(*extproc.Request, string) (string, error) { return "", nil }
