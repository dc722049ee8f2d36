// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"errors"
	"fmt"
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

// errSiteFull means that the routers of the site hold as many requests as a limit allows.
var errSiteFull = fmt.Errorf("%w at all routers of the site", holdstate.ErrFull)

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

func (a *acting) hold(q holdstate.Request) (*holdstate.Waiter, error) {
	site, machine := a.d.o.Holds, a.d.o.Machine
	if site == nil {
		return machine.Hold(q)
	}
	err := machine.WouldHold(q) // first, so that the site is asked only about requests that may be held here
	if err == nil {
		var fits bool
		if q.SiteHold, fits = site.Hold(q.Target.Model, q.Key); !fits {
			err = errSiteFull
		}
	}
	if errors.Is(err, holdstate.ErrFull) && !q.Counted {
		a.d.o.Events.HoldEnded(holdstate.OutcomeFull, 0)
	}
	if err != nil {
		return nil, err
	}
	w, err := machine.Hold(q)
	if err != nil {
		q.SiteHold.Leave()
	}
	return w, err
}

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
	err := l.d.o.Machine.WouldHold(q)
	if site := l.d.o.Holds; err == nil && site != nil && !site.WouldHold(q.Target.Model, q.Key) {
		err = errSiteFull
	}
	return nil, err
}

func (l *looking) token(*extproc.Request, string) (string, error) { return "", nil }
