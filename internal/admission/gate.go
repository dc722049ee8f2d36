// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"sync"
	"sync/atomic"

	"github.com/holdgate/holdgate/holdstate"
)

// Limits are what one healthy replica of a model may have in hand. 0 is no limit.
type Limits struct {
	Inflight int64 // requests
	Tokens   int64 // estimated tokens
}

// capacity is the limits over all replicas; at least one is counted.
func (l Limits) capacity(replicas int) Limits {
	n := int64(max(replicas, 1))
	return Limits{Inflight: l.Inflight * n, Tokens: l.Tokens * n}
}

// budget is how many tokens the gate gives out: 0.90 of them all, because the
// footprint of a request is an estimate.
func (l Limits) budget() int64 { return l.Tokens * 9 / 10 }

// Ask is what a request asks of the gate.
type Ask struct {
	Model    string
	Limits   Limits
	Replicas int // healthy ones
	Tokens   int64
	Key      string  // the id of the caller's key; empty: it has no share
	Share    float64 // of Limits.Tokens over all replicas, 1: no share
	// Again: the request was let in before, and its replica did not answer. It is
	// not refused now.
	Again bool
}

// Gate knows what every model has in hand. The zero value is ready for use, and
// safe for many goroutines.
type Gate struct {
	mu     sync.Mutex
	models map[string]*inHand
}

// inHand is what was let in for a model and has not ended.
type inHand struct {
	requests, tokens int64
	byKey            map[string]int64 // tokens, of keys with a share
}

// Admit reserves room. It returns nil when there is none at this moment, and an
// error when there can be none.
func (g *Gate) Admit(a Ask) (*Reservation, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if fits, err := g.fits(a); !fits {
		return nil, err
	}
	m := g.models[a.Model]
	if m == nil {
		m = &inHand{byKey: map[string]int64{}}
		if g.models == nil {
			g.models = map[string]*inHand{}
		}
		g.models[a.Model] = m
	}
	r := &Reservation{gate: g, model: a.Model, tokens: a.Tokens}
	m.requests++
	m.tokens += a.Tokens
	if a.shared() {
		r.key = a.Key
		m.byKey[a.Key] += a.Tokens
	}
	return r, nil
}

// Fits says what Admit would say, and reserves nothing.
func (g *Gate) Fits(a Ask) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fits(a)
}

func (g *Gate) fits(a Ask) (bool, error) {
	if a.Again {
		return true, nil
	}
	have := inHand{}
	if m := g.models[a.Model]; m != nil {
		have = *m
	}
	all := a.Limits.capacity(a.Replicas)
	if all.Tokens > 0 && a.Tokens > all.budget() {
		return false, holdstate.ErrTooLarge
	}
	if share := int64(a.Share * float64(all.Tokens)); all.Tokens > 0 && a.shared() {
		switch {
		case a.Tokens > share:
			return false, holdstate.ErrOverShareAlways
		case have.byKey[a.Key]+a.Tokens > share:
			return false, holdstate.ErrOverShare
		}
	}
	return (all.Inflight == 0 || have.requests < all.Inflight) &&
		(all.Tokens == 0 || have.tokens+a.Tokens <= all.budget()), nil
}

func (a Ask) shared() bool { return a.Key != "" && a.Share < 1 }

// Reservation is what one request has reserved.
type Reservation struct {
	gate   *Gate
	model  string
	key    string // empty: without a share
	tokens int64

	released atomic.Bool
}

// Release gives the room back. Calls after the first do nothing.
func (r *Reservation) Release() {
	if !r.released.CompareAndSwap(false, true) {
		return
	}
	g := r.gate
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
	}
}

// InHand says what a model has in hand.
func (g *Gate) InHand(model string) (requests, tokens int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.models[model]; m != nil {
		return m.requests, m.tokens
	}
	return 0, 0
}

// Budget says what a model may have in hand; 0 is no limit.
func (l Limits) Budget(replicas int) (requests, tokens int64) {
	all := l.capacity(replicas)
	return all.Inflight, all.budget()
}
