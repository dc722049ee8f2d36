// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/shared"
)

// longestAsk is how long a request waits for its answer. Only a request whose model is not ready
// asks.
const longestAsk = 100 * time.Millisecond

// HoldLimits are how many requests the routers of a site may hold together.
type HoldLimits struct {
	PerModel int
	PerKey   int // per key and model; no limit without a key
	Total    int
}

// Holds are the limits of held requests over all routers of the site.
//
// Each router writes how many requests it holds, for each limit, as a count and never as a
// difference, so that nothing drifts. One goroutine makes one call at a time: it writes the
// counts that have changed, and asks for the requests that are to be held, in one script. So
// the routers never hold more than a limit while each answer comes in time. Only a request
// that returns to its hold, because its replica failed, counts without asking.
//
// A count ends [shared.Life] after its router last wrote it.
//
// If there is no answer in time, a router decides alone, with what the others held at the last
// answer about the limit: it takes at most an equal part of what is free. What an answer said counts
// for [shared.Life]; after that, while the server does not answer, a router applies the limits to
// what it holds itself.
type Holds struct {
	client   *shared.Client
	limits   HoldLimits
	patience time.Duration // how long a request waits for its answer
	wake     chan struct{} // receives a token when there is something to write or to ask
	noAnswer atomic.Int64  // requests that were decided alone, since the start

	mu     sync.Mutex
	counts map[holdLimit]int    // what this router holds
	alone  map[holdLimit]int    // how many of them it decided alone since it last told the server
	others map[holdLimit]others // what the other routers held
	dirty  map[holdLimit]struct{}
	asked  []*holdAsk // not sent yet
	began  time.Time  // when the current call began; zero: there is none
}

// holdLimit identifies a limit: of a key and model, of a model, or the total.
type holdLimit struct{ model, key string }

// holdAsk asks whether one more request may be held.
type holdAsk struct {
	hold   *hold
	look   bool // it is not to be counted
	answer chan bool
	late   bool // nobody waits for the answer any more
}

// NewHolds returns the limits. It must be called before the client runs.
func NewHolds(client *shared.Client, limits HoldLimits) *Holds {
	h := &Holds{
		client: client, limits: limits, patience: longestAsk, wake: make(chan struct{}, 1),
		counts: map[holdLimit]int{}, alone: map[holdLimit]int{}, others: map[holdLimit]others{},
		dirty: map[holdLimit]struct{}{},
	}
	client.OnBeat(func(context.Context) { h.writeAgain() })
	client.Go(h.run)
	return h
}

// Hold reports whether the limits allow one more held request, and if so counts it until
// Leave. key may be empty.
func (h *Holds) Hold(model, key string) (counted holdstate.SiteHold, fits bool) {
	one := newHold(h, model, key)
	return one, h.ask(&holdAsk{hold: one, answer: make(chan bool, 1)})
}

// WouldHold returns what Hold would report now.
func (h *Holds) WouldHold(model, key string) (fits bool) {
	return h.ask(&holdAsk{hold: newHold(h, model, key), look: true, answer: make(chan bool, 1)})
}

// ask returns the answer.
func (h *Holds) ask(a *holdAsk) (fits bool) {
	if !h.queue(a) {
		return h.giveUp(a)
	}
	h.wakeUp()
	limit := time.NewTimer(h.patience)
	defer limit.Stop()
	select {
	case fits = <-a.answer:
		return fits
	case <-limit.C:
		return h.giveUp(a)
	}
}

// giveUp returns the answer if there is one, else the router decides alone.
func (h *Holds) giveUp(a *holdAsk) (fits bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case fits = <-a.answer:
		return fits
	default:
		a.late = true
		return h.decideAlone(a)
	}
}

// queue adds a to what is asked next, unless the server does not answer, or the current call has
// taken so long already that no request should wait for it.
func (h *Holds) queue(a *holdAsk) bool {
	if !h.client.Up() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.began.IsZero() && time.Since(h.began) > h.patience {
		return false
	}
	h.asked = append(h.asked, a)
	return true
}

// wakeUp has the goroutine of run look for something to do.
func (h *Holds) wakeUp() { notify(h.wake) }

// writeAgain has all counts written again, and forgets what the others held too long ago.
func (h *Holds) writeAgain() {
	h.mu.Lock()
	h.forget(time.Now())
	for l := range h.counts {
		h.dirty[l] = struct{}{}
	}
	h.mu.Unlock()
	h.wakeUp()
}

// hold is one request. It is the holdstate.SiteHold.
type hold struct {
	h       *Holds
	limits  []holdLimit
	counted bool // guarded by the lock of h
}

func newHold(h *Holds, model, key string) *hold {
	limits := []holdLimit{{}, {model: model}, {model: model, key: key}}
	if key == "" {
		limits = limits[:2]
	}
	return &hold{h: h, limits: limits}
}

// Join is part of holdstate.SiteHold.
func (o *hold) Join() { o.count(true, 1) }

// Leave is part of holdstate.SiteHold.
func (o *hold) Leave() { o.count(false, -1) }

// count counts the request or stops counting it, and has that written.
func (o *hold) count(counted bool, n int) {
	h := o.h
	h.mu.Lock()
	changed := o.counted != counted
	if changed {
		o.counted = counted
		h.add(o.limits, n)
		h.changed(o.limits)
	}
	h.mu.Unlock()
	if changed {
		h.wakeUp()
	}
}

// add adds n to the counts of limits. The lock must be held.
func (h *Holds) add(limits []holdLimit, n int) {
	for _, l := range limits {
		set(h.counts, l, h.counts[l]+n)
		set(h.alone, l, min(h.alone[l], h.counts[l]))
	}
}

// set sets a count, which is not in the map while it is 0.
func set(counts map[holdLimit]int, l holdLimit, n int) {
	if n > 0 {
		counts[l] = n
	} else {
		delete(counts, l)
	}
}

// changed notes that counts are not as they were written. The lock must be held.
func (h *Holds) changed(limits []holdLimit) {
	for _, l := range limits {
		h.dirty[l] = struct{}{}
	}
}

// limitOf returns the number of the limit l.
func (h *Holds) limitOf(l holdLimit) int {
	switch {
	case l.key != "":
		return h.limits.PerKey
	case l.model != "":
		return h.limits.PerModel
	}
	return h.limits.Total
}

// keyOf returns the name of the hash with the counts of l.
func (h *Holds) keyOf(l holdLimit) string {
	switch {
	case l.key != "":
		return h.client.Key("holds", "k", hashOf(l.model, l.key))
	case l.model != "":
		return h.client.Key("holds", "m", hashOf(l.model))
	}
	return h.client.Key("holds", "total")
}
