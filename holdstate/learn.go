// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"container/list"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

const (
	wakesKept    = 20     // wakes remembered per model
	wakesNeeded  = 3      // wakes seen before they are believed
	modelsKept   = 10_000 // models whose wakes are remembered
	unknownRetry = 30     // seconds told while too little is known
	maxRetry     = 60     // seconds told at most
	noWake       = 100 * time.Millisecond
)

// wake is the wake that a model is in. It began when a request arrived for a
// model nobody else waited for and no replica served, and ends with the first
// replica for that request's target.
type wake struct {
	running bool
	target  target.Target
	since   time.Time
}

// wakes remembers how long the last wakes of each model took, also of models that
// nobody waits for any more.
type wakes struct {
	of     map[string]*list.Element
	recent list.List // of *history, the last used in front
}

// history is the last wakes of one model.
type history struct {
	model string
	took  []time.Duration // a ring once it is full
	next  int             // the place of the next one then
	p90   time.Duration   // 0 until enough were seen
}

// begin notes that a request which enters now has the model woken. A request that
// had a replica before, and one that joins others, say nothing of how long a wake
// takes: a replica that was lost for a moment would be learned as a very short one.
func (m *Machine) begin(mod *model, w *Waiter) {
	if mod.wake.running || w.again || mod.held != 1 || m.o.Slots.Serving(w.request.Target) {
		return
	}
	mod.wake = wake{running: true, target: w.request.Target, since: time.Now()}
	m.waking.Add(1)
}

// woke ends the wake that waited for a replica of t, and learns how long it took. A
// replica that is there sooner than any engine starts was up all the time: it was a
// backend that nobody had looked at.
func (m *Machine) woke(t target.Target) {
	mod := m.models[t.Model]
	if mod == nil || !mod.wake.running || mod.wake.target != t {
		return
	}
	took := time.Since(mod.wake.since)
	m.giveUp(mod)
	if took < noWake {
		return
	}
	m.wakes.learn(mod.name, took)
	m.after = append(m.after, func() { m.o.OnWake(mod.name, took) })
}

// giveUp forgets the wake of a model: it is over, it failed, or nobody wants it
// any more.
func (m *Machine) giveUp(mod *model) {
	if mod.wake.running {
		mod.wake = wake{}
		m.waking.Add(-1)
	}
}

// RetryAfter is in how many seconds a client should come again that asked for a
// model which sleeps: 30 until three wakes of it were seen; then what is left of
// the time in which nine of ten of its wakes were done, less up to a tenth so that
// not all clients come at once. It is always from 1 to 60.
func (m *Machine) RetryAfter(name string) int {
	if seconds, learned := m.Learned(name); learned {
		return seconds
	}
	return unknownRetry
}

// Learned is RetryAfter where three wakes of the model were seen.
func (m *Machine) Learned(name string) (seconds int, learned bool) {
	m.mu.Lock()
	h := m.wakes.find(name)
	if h == nil || h.p90 == 0 {
		m.mu.Unlock()
		return 0, false
	}
	left := h.p90
	if mod := m.models[name]; mod != nil && mod.wake.running {
		left -= time.Since(mod.wake.since)
	}
	m.mu.Unlock()
	return spread(left), true
}

// spread makes whole seconds of d, at most a tenth less than they are.
func spread(d time.Duration) int {
	seconds := int((min(d, maxRetry*time.Second) + time.Second - 1) / time.Second)
	seconds = max(1, seconds)
	return seconds - rand.IntN(seconds/10+1) //nolint:gosec // it spreads load and keeps no secret
}

// find is what was learned of a model, nil for nothing.
func (k *wakes) find(name string) *history {
	e := k.of[name]
	if e == nil {
		return nil
	}
	k.recent.MoveToFront(e)
	return e.Value.(*history)
}

// learn adds a wake. The model that was not used for the longest time makes room.
func (k *wakes) learn(name string, took time.Duration) {
	h := k.find(name)
	if h == nil {
		if k.of == nil {
			k.of = map[string]*list.Element{}
		}
		if len(k.of) == modelsKept {
			last := k.recent.Back()
			delete(k.of, k.recent.Remove(last).(*history).model)
		}
		// A clone, for name may be a piece of a request's body.
		h = &history{model: strings.Clone(name)}
		k.of[h.model] = k.recent.PushFront(h)
	}
	h.add(took)
}

func (h *history) add(took time.Duration) {
	if len(h.took) < wakesKept {
		h.took = append(h.took, took)
	} else {
		h.took[h.next] = took
		h.next = (h.next + 1) % wakesKept
	}
	if len(h.took) < wakesNeeded {
		return
	}
	sorted := slices.Sorted(slices.Values(h.took))
	h.p90 = max(1, sorted[(9*len(sorted)+9)/10-1]) // the nearest rank
}
