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
	wakesKept    = 20                     // wakes remembered per model
	wakesNeeded  = 3                      // wakes seen before they are used
	modelsKept   = 10_000                 // models whose wakes are remembered
	unknownRetry = 30                     // Retry-After in seconds, before that
	maxRetry     = 60                     // the highest Retry-After, in seconds
	noWake       = 100 * time.Millisecond // a wake is longer
)

// wake is a model's wake that is going on. It starts with a request for a model that no
// other request waits for and no replica serves, and ends with the first replica for the
// request's target.
type wake struct {
	running bool
	target  target.Target
	since   time.Time
}

// wakes remembers how long the last wakes of each model took, also without waiters.
type wakes struct {
	of     map[string]*list.Element
	recent list.List // of *history, the most recently used in front
}

// history is the last wakes of one model.
type history struct {
	model string
	took  []time.Duration // a ring once it is full
	next  int             // the index of the oldest then
	p90   time.Duration   // 0 until enough were seen
}

// startWake starts the wake of the model if w is the request that wakes it. A request that
// had a replica before does not count: a replica that was lost for a moment would be
// learned as a very short wake.
func (mod *model) startWake(w *Waiter) {
	t := w.request.Target
	if mod.wake.running || w.returning || mod.held != 1 || mod.m.o.Slots.Serving(t) {
		return
	}
	mod.wake = wake{running: true, target: t, since: time.Now()}
	mod.m.waking.Add(1)
}

// endWake ends the wake that waited for a replica of t, and learns how long it took. A
// replica that is up sooner than any engine starts was up before: it belongs to a backend
// that was not checked yet.
func (mod *model) endWake(t target.Target) {
	if !mod.wake.running || mod.wake.target != t {
		return
	}
	m, took := mod.m, time.Since(mod.wake.since)
	mod.stopWake()
	if took < noWake {
		return
	}
	m.wakes.learn(mod.name, took)
	m.after = append(m.after, func() { m.o.OnWake(mod.name, took) })
}

// stopWake forgets the wake: it is over, it failed, or the model is not wanted any more.
func (mod *model) stopWake() {
	if mod.wake.running {
		mod.wake = wake{}
		mod.m.waking.Add(-1)
	}
}

// RetryAfter returns in how many seconds a client should retry a request for a model that
// sleeps: 30 until three wakes of it were seen, then what is left of the time in which nine
// of ten of its wakes ended, less a random part of up to a tenth, which spreads the
// clients. It is from 1 to 60.
func (m *Machine) RetryAfter(name string) int {
	if seconds, learned := m.Learned(name); learned {
		return seconds
	}
	return unknownRetry
}

// Learned is RetryAfter for a model of which three wakes were seen.
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

// spread returns d in whole seconds, rounded up, less a random part of up to a tenth.
func spread(d time.Duration) int {
	seconds := int((min(d, maxRetry*time.Second) + time.Second - 1) / time.Second)
	seconds = max(1, seconds)
	return seconds - rand.IntN(seconds/10+1) //nolint:gosec // it spreads load and keeps no secret
}

// find returns what was learned of a model, or nil.
func (k *wakes) find(name string) *history {
	e := k.of[name]
	if e == nil {
		return nil
	}
	k.recent.MoveToFront(e)
	return e.Value.(*history)
}

// learn adds a wake. Beyond modelsKept the least recently used model is forgotten.
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
		// A clone, because name may be a part of a request's body.
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
