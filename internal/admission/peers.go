// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"crypto/sha256"
	"math"
	"slices"
	"time"
)

// KeyHash stands for the id of a key.
type KeyHash [8]byte

// HashKey returns the hash of an id.
func HashKey(id string) KeyHash {
	sum := sha256.Sum256([]byte(id))
	return KeyHash(sum[:])
}

// Occupancy is what one router has reserved for a model.
type Occupancy struct {
	Requests, Tokens int64
	ByKey            map[KeyHash]int64 // tokens, of keys with a limit of their own
	// WaitsSince is when requests of the router began to wait for a reservation, or when it
	// last made one if that was later; zero: none waits.
	WaitsSince time.Time
}

// claims reports whether the router has reserved anything or waits.
func (o *Occupancy) claims() bool { return o.Requests > 0 || !o.WaitsSince.IsZero() }

// Sharing is how the gates of several routers share the limits. No field may be nil.
type Sharing struct {
	// Routers returns the number of routers, this one among them.
	Routers func() int
	// OnChange is called when what Occupancy returns for a model may have changed.
	OnChange func(model string)
	// Retry is called when the waiters of a model may get a reservation that was refused.
	Retry func(model string)
}

// Share makes the gate count what other routers have reserved. It must be called before any
// claim is used.
func (c *Capacity) Share(s Sharing) { c.gate.sharing, c.gate.site = &s, map[string]*siteModel{} }

// SetOthers replaces what the other routers have reserved for a model. The caller should let
// the model's waiters try again.
func (c *Capacity) SetOthers(model string, others []Occupancy) { c.gate.setOthers(model, others) }

// Occupancy returns what this router has reserved for a model. waits is whether requests of it
// wait for a reservation.
func (c *Capacity) Occupancy(model string, waits bool) Occupancy {
	return c.gate.occupancy(model, waits)
}

// Occupied returns the models for which this router has reserved something, or for which
// requests of it may wait.
func (c *Capacity) Occupied() []string { return c.gate.occupied() }

// siteModel is what a gate knows of the other routers' reservations for a model. A nil one
// knows of none.
type siteModel struct {
	others     []Occupancy
	sum        reserved // of others, without byKey
	claiming   int      // how many of others claim something
	waitsSince time.Time
	window     window
	retrying   bool // Retry is called at the end of the window
}

// propagation is longer than it usually takes until the other routers know of a reservation.
const propagation = 10 * time.Millisecond

// window limits what a router reserves before the others know of it, so that a burst at
// several routers does not use the same space several times: each takes at most an equal part
// of what is free, but at least one request.
type window struct {
	ends time.Time
	base int64    // requests that this router had reserved when it began
	most reserved // what it may have reserved when it ends, without byKey
}

// allows reports whether a request fits in the window.
func (w *window) allows(own reserved, tokens int64) bool {
	return own.requests <= w.base || own.requests < w.most.requests && own.tokens+tokens <= w.most.tokens
}

// windowAt returns the current window, a new one if the last has ended. all are the limits,
// and routers is the number of routers.
func (s *siteModel) windowAt(now time.Time, own reserved, all limits, routers int) window {
	if now.Before(s.window.ends) {
		return s.window
	}
	n := int64(routers)
	w := window{ends: now.Add(propagation), base: own.requests, most: reserved{requests: math.MaxInt64, tokens: math.MaxInt64}}
	if all.requests > 0 {
		w.most.requests = own.requests + (max(all.requests-own.requests-s.sum.requests, 0)+n-1)/n
	}
	if all.tokens > 0 {
		w.most.tokens = own.tokens + max(all.budget()-own.tokens-s.sum.tokens, 0)/n
	}
	return w
}

// reserved returns what the others have reserved, without byKey.
func (s *siteModel) reserved() reserved {
	if s == nil {
		return reserved{}
	}
	return s.sum
}

// ofKey returns the tokens that the others have reserved for a key.
func (s *siteModel) ofKey(id string) (tokens int64) {
	if s == nil || id == "" || len(s.others) == 0 {
		return 0
	}
	hash := HashKey(id)
	for i := range s.others {
		tokens += s.others[i].ByKey[hash]
	}
	return tokens
}

// yields reports whether a router that has reserved own must leave free space to others, whose
// requests wait. Each router may use an equal part of the limits. What a router does not use
// goes to the one that has reserved least; between equals, to the one that has waited longest
// since it made its last reservation.
func (s *siteModel) yields(own reserved, tokens int64, all limits) bool {
	if all.part(own.requests+1, own.tokens+tokens)*float64(s.claiming+1) <= 1 {
		return false
	}
	mine := all.part(own.requests, own.tokens)
	return slices.ContainsFunc(s.others, func(o Occupancy) bool {
		if o.WaitsSince.IsZero() {
			return false
		}
		theirs := all.part(o.Requests, o.Tokens)
		first := s.waitsSince.IsZero() || o.WaitsSince.Before(s.waitsSince)
		return theirs < mine || theirs == mine && first
	})
}

// holdsBack reports whether a reservation that fits has to wait because of other routers. The
// lock must be held, and the gate must be shared.
func (g *gate) holdsBack(q gateRequest, own reserved, all limits) bool {
	if all == (limits{}) {
		return false
	}
	routers, s := g.sharing.Routers(), g.site[q.model]
	if s == nil {
		s = &siteModel{}
	}
	if routers < 2 && s.claiming == 0 {
		return false
	}
	w := s.windowAt(time.Now(), own, all, routers)
	return !w.allows(own, q.tokens) || s.yields(own, q.tokens, all)
}

// reserving notes that this router makes a reservation: it uses the window, and begins a new
// wait. The lock must be held, and the gate must be shared.
func (g *gate) reserving(q gateRequest, own reserved) {
	now, s := time.Now(), g.siteOf(q.model)
	s.window = s.windowAt(now, own, q.limits.times(q.replicas), g.sharing.Routers())
	if !s.waitsSince.IsZero() {
		s.waitsSince = now
	}
}

// part returns which part of the limits is in use: of the limit of which more is.
func (l limits) part(requests, tokens int64) (part float64) {
	if l.requests > 0 {
		part = float64(requests) / float64(l.requests)
	}
	if l.tokens > 0 {
		part = max(part, float64(tokens)/float64(l.budget()))
	}
	return part
}

// siteOf returns what is known of the other routers' reservations for a model, and adds it.
// The lock must be held, and the gate must be shared.
func (g *gate) siteOf(model string) *siteModel {
	s := g.site[model]
	if s == nil {
		s = &siteModel{}
		g.site[model] = s
	}
	return s
}

// refused notes that a request has to wait, and reports whether the others must know. The lock
// must be held, and the gate must be shared.
func (g *gate) refused(model string) (news bool) {
	now, s := time.Now(), g.siteOf(model)
	if now.Before(s.window.ends) && !s.retrying {
		s.retrying = true
		time.AfterFunc(s.window.ends.Sub(now), func() { g.retry(model) })
	}
	if news = s.waitsSince.IsZero(); news {
		s.waitsSince = now
	}
	return news
}

// retry lets the waiters of a model try again after a window.
func (g *gate) retry(model string) {
	g.mu.Lock()
	if s := g.site[model]; s != nil {
		s.retrying = false
	}
	g.mu.Unlock()
	g.sharing.Retry(model)
}

func (g *gate) setOthers(model string, others []Occupancy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.siteOf(model)
	s.others, s.sum, s.claiming = others, reserved{}, 0
	for i := range others {
		s.sum.requests += others[i].Requests
		s.sum.tokens += others[i].Tokens
		if others[i].claims() {
			s.claiming++
		}
	}
	g.forget(model, s)
}

func (g *gate) occupancy(model string, waits bool) (o Occupancy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.models[model]; m != nil {
		o.Requests, o.Tokens = m.requests, m.tokens
		o.ByKey = make(map[KeyHash]int64, len(m.byKey))
		for id, tokens := range m.byKey {
			o.ByKey[HashKey(id)] = tokens
		}
	}
	s := g.site[model]
	if s == nil {
		return o
	}
	if !waits {
		s.waitsSince = time.Time{}
		g.forget(model, s)
	}
	o.WaitsSince = s.waitsSince
	return o
}

// forget removes s if it says nothing. The lock must be held.
func (g *gate) forget(model string, s *siteModel) {
	if len(s.others) == 0 && s.waitsSince.IsZero() && !s.retrying && g.models[model] == nil {
		delete(g.site, model)
	}
}

func (g *gate) occupied() (models []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for model := range g.models {
		models = append(models, model)
	}
	for model, s := range g.site {
		if g.models[model] == nil && !s.waitsSince.IsZero() {
			models = append(models, model)
		}
	}
	return models
}
