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

const (
	// longestAsk limits how long a request waits for its answer if many ask at once.
	longestAsk = 100 * time.Millisecond
	// manyAsks is how many that are.
	manyAsks = 10
)

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
// Alone, which is when a call takes longer than [shared.CallTimeout], or 100 ms while many
// requests ask at once, a router applies the limits to the requests that it holds itself.
type Holds struct {
	client   *shared.Client
	limits   HoldLimits
	patience time.Duration // how long a request waits for a call
	longest  time.Duration // how long it waits if many ask at once
	wake     chan struct{} // receives a token when there is something to write or to ask
	waiting  atomic.Int64  // requests that wait for an answer

	mu     sync.Mutex
	counts map[holdLimit]int // what this router holds
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
		client: client, limits: limits, patience: shared.CallTimeout, longest: longestAsk, wake: make(chan struct{}, 1),
		counts: map[holdLimit]int{}, dirty: map[holdLimit]struct{}{},
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

// ask returns the answer. Alone, it is yes.
func (h *Holds) ask(a *holdAsk) (fits bool) {
	if !h.client.Up() || !h.queue(a) {
		return true
	}
	h.waiting.Add(1)
	defer h.waiting.Add(-1)
	h.wakeUp()
	begin := time.Now()
	limit := time.NewTimer(h.patience)
	defer limit.Stop()
	for {
		select {
		case fits = <-a.answer:
			return fits
		case <-limit.C:
		}
		more := h.moreTime(time.Since(begin))
		if more <= 0 {
			return h.giveUp(a)
		}
		limit.Reset(more)
	}
}

// moreTime returns how long a request that has waited should still wait. With few requests that
// is until the current call is late. If many ask at once, this process is too busy to have an
// answer as fast.
func (h *Holds) moreTime(waited time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting.Load() >= manyAsks {
		return h.longest - waited
	}
	if h.began.IsZero() {
		return min(h.patience, h.longest-waited)
	}
	return h.patience - time.Since(h.began)
}

// giveUp returns the answer if there is one, else the request decides alone.
func (h *Holds) giveUp(a *holdAsk) (fits bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case fits = <-a.answer:
		return fits
	default:
		a.late = true
		return true
	}
}

// queue adds a to what is asked next, unless the current call has taken so long already that
// no request should wait for it.
func (h *Holds) queue(a *holdAsk) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.began.IsZero() && time.Since(h.began) > h.longest {
		return false
	}
	h.asked = append(h.asked, a)
	return true
}

// wakeUp has the goroutine of run look for something to do.
func (h *Holds) wakeUp() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// writeAgain has all counts written again.
func (h *Holds) writeAgain() {
	h.mu.Lock()
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
		if h.counts[l] += n; h.counts[l] == 0 {
			delete(h.counts, l)
		}
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
