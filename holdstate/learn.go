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
	wakesKept    = 20                     // durations stored per model
	wakesNeeded  = 3                      // durations before the first estimate
	modelsKept   = 10_000                 // models with stored durations
	unknownRetry = 30                     // Retry-After in seconds without an estimate
	maxRetry     = 60                     // the highest Retry-After, in seconds
	minWake      = 100 * time.Millisecond // a shorter wait for a replica was no wake
)

// wake is the current wake of a model. It begins with a request for a target without a
// replica, when no other request waits for the model, and ends with the first replica for
// that target.
type wake struct {
	running bool
	target  target.Target
	since   time.Time
}

// wakes stores how long the last wakes of each model took.
type wakes struct {
	byModel map[string]*list.Element
	recent  list.List // of *history, the most recently used in front
}

// history has the durations of the last wakes of one model.
type history struct {
	model string
	took  []time.Duration // a ring once it is full
	next  int             // the index of the oldest then
	p90   time.Duration   // 0 with fewer than wakesNeeded durations
}

// startWake starts the wake of the model if w is the request that causes it. A request that
// waited before does not count: a replica that was gone for a moment would be recorded as a
// very short wake.
func (mod *model) startWake(w *Waiter) {
	t := w.request.Target
	if mod.wake.running || w.returning || mod.held != 1 || mod.m.o.Slots.Serving(t) {
		return
	}
	mod.wake = wake{running: true, target: t, since: time.Now()}
	mod.m.waking.Add(1)
}

// endWake ends the wake if it is for t, and stores how long it took. A replica that comes
// faster than any engine starts was up before: it belongs to a backend that had not been
// checked yet.
func (mod *model) endWake(t target.Target) {
	if !mod.wake.running || mod.wake.target != t {
		return
	}
	m, took := mod.m, time.Since(mod.wake.since)
	mod.stopWake()
	if took < minWake {
		return
	}
	m.wakes.learn(mod.name, took)
	m.after = append(m.after, func() { m.o.OnWake(mod.name, took) })
}

// stopWake ends the wake without storing its duration.
func (mod *model) stopWake() {
	if mod.wake.running {
		mod.wake = wake{}
		mod.m.waking.Add(-1)
	}
}

// RetryAfter returns in how many seconds a client should retry a request for a model that
// sleeps: 30 until three wakes of the model were measured, then the 90th percentile of its
// wakes, less the time that the current wake has taken. A random part of up to a tenth is
// subtracted to spread the clients. The result is from 1 to 60.
func (m *Machine) RetryAfter(name string) int {
	if seconds, learned := m.Learned(name); learned {
		return seconds
	}
	return unknownRetry
}

// Learned returns RetryAfter, and false while fewer than three wakes of the model were
// measured.
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

// WakeTimes returns how long a wake of the model should take, by the 90th percentile of its last
// wakes, 0 while fewer than three were measured; and for how long its current wake has been
// running, 0 if there is none.
func (m *Machine) WakeTimes(name string) (expected, running time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.wakes.find(name); h != nil {
		expected = h.p90
	}
	if mod := m.models[name]; mod != nil && mod.wake.running {
		running = time.Since(mod.wake.since)
	}
	return expected, running
}

// spread returns d in whole seconds, rounded up, less a random part of up to a tenth.
func spread(d time.Duration) int {
	seconds := int((min(d, maxRetry*time.Second) + time.Second - 1) / time.Second)
	seconds = max(1, seconds)
	return seconds - rand.IntN(seconds/10+1) //nolint:gosec // it spreads load and keeps no secret
}

// Times returns how long the last wakes of a model took, the oldest first.
func (m *Machine) Times(name string) []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.wakes.find(name)
	if h == nil {
		return nil
	}
	return slices.Concat(h.took[h.next:], h.took[:h.next])
}

// SetTimes replaces the durations of the last wakes of a model, the oldest first. The last
// wakesKept of them count.
func (m *Machine) SetTimes(name string, took []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.wakes.history(name)
	h.took, h.next, h.p90 = nil, 0, 0
	for _, d := range took {
		h.add(d)
	}
}

// find returns the history of a model, or nil, and marks it as used.
func (k *wakes) find(name string) *history {
	e := k.byModel[name]
	if e == nil {
		return nil
	}
	k.recent.MoveToFront(e)
	return e.Value.(*history)
}

// learn stores the duration of a wake.
func (k *wakes) learn(name string, took time.Duration) { k.history(name).add(took) }

// history returns the history of a model, and adds it if there is none. With modelsKept models,
// it deletes the least recently used one for a new one.
func (k *wakes) history(name string) *history {
	h := k.find(name)
	if h == nil {
		if k.byModel == nil {
			k.byModel = map[string]*list.Element{}
		}
		if len(k.byModel) == modelsKept {
			last := k.recent.Back()
			delete(k.byModel, k.recent.Remove(last).(*history).model)
		}
		// A clone, because name may be a part of a request's body.
		h = &history{model: strings.Clone(name)}
		k.byModel[h.model] = k.recent.PushFront(h)
	}
	return h
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
