// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"sync"
	"sync/atomic"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/policy"
)

// limits are what may be reserved at once for each healthy replica of a model. 0 is no
// limit.
type limits struct {
	requests int64
	tokens   int64 // estimated
}

func limitsOf(p *policy.Model) limits {
	return limits{requests: p.MaxInflight, tokens: p.AdmitBudgetTokens}
}

// times returns the limits for a number of replicas; at least one is counted.
func (l limits) times(replicas int) limits {
	n := int64(max(replicas, 1))
	return limits{requests: l.requests * n, tokens: l.tokens * n}
}

// budget returns how many tokens the gate reserves: 0.90 of the limit, because the
// footprint of a request is an estimate.
func (l limits) budget() int64 { return l.tokens * 9 / 10 }

// gateRequest is the request for a reservation.
type gateRequest struct {
	model    string
	limits   limits
	replicas int // healthy ones
	tokens   int64
	key      string  // the id of the caller's key; empty: it has no share
	share    float64 // of limits.tokens over all replicas; 1: all of it
	// retry: the request had a reservation before, and its replica did not answer. It always
	// gets one again.
	retry bool
}

// shared reports whether the key has a limit of its own.
func (q gateRequest) shared() bool { return q.key != "" && q.share < 1 }

// gate is the admission gate. The zero value is ready for use, and safe for concurrent
// use.
type gate struct {
	sharing *Sharing // nil: this router is alone

	mu     sync.Mutex
	models map[string]*reserved
	site   map[string]*siteModel // what is known of the other routers, by model
}

// reserved is the sum of all reservations for a model.
type reserved struct {
	requests, tokens int64
	byKey            map[string]int64 // tokens, of keys with a limit of their own
}

// reserve returns a reservation, or nil when the request does not fit now. An error means
// that it will never fit, or exceeds the share of its key.
func (g *gate) reserve(q gateRequest) (*reservation, error) {
	g.mu.Lock()
	fits, err := g.check(q)
	var r *reservation
	news := fits
	switch {
	case fits:
		r = g.add(q)
	case err == nil && g.sharing != nil:
		news = g.refused(q.model)
	}
	g.mu.Unlock()
	if news && g.sharing != nil {
		g.sharing.OnChange(q.model)
	}
	return r, err
}

// add makes a reservation. The lock must be held.
func (g *gate) add(q gateRequest) *reservation {
	m := g.models[q.model]
	if m == nil {
		m = &reserved{byKey: map[string]int64{}}
		if g.models == nil {
			g.models = map[string]*reserved{}
		}
		g.models[q.model] = m
	}
	if g.sharing != nil {
		g.reserving(q, *m)
	}
	r := &reservation{gate: g, model: q.model, tokens: q.tokens}
	m.requests++
	m.tokens += q.tokens
	if q.shared() {
		r.key = q.key
		m.byKey[q.key] += q.tokens
	}
	return r
}

// fits reports whether reserve would return a reservation, and returns the error that it
// would return.
func (g *gate) fits(q gateRequest) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.check(q)
}

// check is fits under the lock.
func (g *gate) check(q gateRequest) (fits bool, err error) {
	if q.retry {
		return true, nil
	}
	var own reserved
	if m := g.models[q.model]; m != nil {
		own = *m
	}
	var site *siteModel
	var others reserved
	if g.sharing != nil {
		site = g.site[q.model]
		others = site.reserved()
	}
	all := q.limits.times(q.replicas)
	if all.tokens > 0 && q.tokens > all.budget() {
		return false, holdstate.ErrTooLarge
	}
	if share := int64(q.share * float64(all.tokens)); all.tokens > 0 && q.shared() {
		switch {
		case q.tokens > share:
			return false, holdstate.ErrOverShareAlways
		case own.byKey[q.key]+site.ofKey(q.key)+q.tokens > share:
			return false, holdstate.ErrOverShare
		}
	}
	fits = (all.requests == 0 || own.requests+others.requests < all.requests) &&
		(all.tokens == 0 || own.tokens+others.tokens+q.tokens <= all.budget())
	return fits && (g.sharing == nil || !g.holdsBack(q, own, all)), nil
}

// reserved returns the requests and tokens that are reserved for a model.
func (g *gate) reserved(model string) (requests, tokens int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.models[model]; m != nil {
		return m.requests, m.tokens
	}
	return 0, 0
}

// reservation is what the gate has reserved for one request.
type reservation struct {
	gate   *gate
	model  string
	key    string // empty: without a limit of its own
	tokens int64

	released atomic.Bool
}

// Release is part of holdstate.Reservation.
func (r *reservation) Release() {
	if !r.released.CompareAndSwap(false, true) {
		return
	}
	r.gate.remove(r)
	if sharing := r.gate.sharing; sharing != nil {
		sharing.OnChange(r.model)
	}
}

// remove removes a reservation from the sums.
func (g *gate) remove(r *reservation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.models[r.model]
	m.requests--
	m.tokens -= r.tokens
	if r.key != "" {
		if m.byKey[r.key] -= r.tokens; m.byKey[r.key] == 0 {
			delete(m.byKey, r.key)
		}
	}
	if m.requests == 0 {
		delete(g.models, r.model)
		if s := g.site[r.model]; s != nil {
			g.forget(r.model, s)
		}
	}
}

// unlimited is the reservation for a model without limits. It is not counted.
type unlimited struct{}

// Release is part of holdstate.Reservation.
func (unlimited) Release() {}
