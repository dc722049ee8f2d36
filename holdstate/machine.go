// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// Limits bound what may wait. Every field must be above 0, but for QueueDepth.
type Limits struct {
	PerModel int   // requests held per model
	PerKey   int   // requests held per key and model; no limit without a key
	Total    int   // requests held across all models
	Bytes    int64 // body bytes held across all models
	// BytesPerModel is body bytes held for one model while Others may be held; 0: as
	// many as Bytes allows.
	BytesPerModel int64
	QueueDepth    int // ordinary requests that wait for a slot, per model and kind; 0: nobody waits for a slot
}

// Options are a machine's settings and collaborators. Slots is required.
type Options struct {
	Limits   Limits
	Linger   time.Duration // how long a model stays wanted after a waiter left unserved
	Cooldown time.Duration // how long a failed wake refuses new holds
	InOrder  bool          // grant by plain arrival order instead of fairly across keys
	Slots    Slots
	// Others says whether requests for other models than this one may be held too;
	// nil: it is so. It is called under the lock, only where BytesPerModel would refuse.
	Others func(model string) bool
	// OnWanted is called when Wish(model) may have changed.
	OnWanted func(model string)
	// OnRelease is called with the number of waiters that a registration released.
	OnRelease func(t target.Target, waiters int)
	// OnWake is called with how long a wake took, from the first request that
	// waited to the first replica.
	OnWake func(model string, took time.Duration)
	// OnQueued is called with how long a request waited for a slot, when that wait ends.
	OnQueued func(model string, waited time.Duration)
	// OnRefused is called when a waiter ended for want of room or of a slot.
	OnRefused func(model string, why error)
	// OnOutcome is called once for every held or refused request.
	OnOutcome func(o Outcome, held time.Duration)
}

// Machine knows every waiter. It is safe for concurrent use.
type Machine struct {
	o       Options
	waiting atomic.Int64  // waiters in any line; read without the lock
	waking  atomic.Int64  // models in a wake; read without the lock
	seq     atomic.Uint64 // the last place that was given

	mu       sync.Mutex
	models   map[string]*model
	queues   map[target.Target]*queues
	held     int
	bytes    int64
	bytesOf  map[string]int64 // by model, those that are not 0
	draining bool
	wishes   uint64                   // that needed no waiting request
	holdable func(target.Target) bool // as last told by Reconcile
	wakes    wakes
	after    []func() // callbacks, run when the lock is free again
}

// model is what is counted per model name.
type model struct {
	name        string
	held        int
	byKey       map[string]int
	identities  map[identity]int
	wantedUntil time.Time
	ahead       uint64 // the number of the wish that lasts until then
	linger      *time.Timer
	failedUntil time.Time
	failure     string
	told        target.Need
	wake        wake
}

// queues are the two queues of a target. Ordinary requests get a slot only when no
// released one wants it, nor one whose replica gave no answer, which stands in the
// same line.
type queues struct {
	serving  bool
	look     bool // everybody is asked what the gate says of it, also who stands behind others
	held     queue
	ordinary queue
}

// New makes a machine.
func New(o Options) *Machine {
	if o.Others == nil {
		o.Others = func(string) bool { return true }
	}
	if o.OnWanted == nil {
		o.OnWanted = func(string) {}
	}
	if o.OnRelease == nil {
		o.OnRelease = func(target.Target, int) {}
	}
	if o.OnWake == nil {
		o.OnWake = func(string, time.Duration) {}
	}
	if o.OnQueued == nil {
		o.OnQueued = func(string, time.Duration) {}
	}
	if o.OnRefused == nil {
		o.OnRefused = func(string, error) {}
	}
	if o.OnOutcome == nil {
		o.OnOutcome = func(Outcome, time.Duration) {}
	}
	return &Machine{
		o: o, models: map[string]*model{}, bytesOf: map[string]int64{}, queues: map[target.Target]*queues{},
		holdable: func(target.Target) bool { return true },
	}
}

// change runs f under the lock and then the callbacks that f caused.
func (m *Machine) change(f func()) {
	m.mu.Lock()
	f()
	after := m.after
	m.after = nil
	m.mu.Unlock()
	for _, call := range after {
		call()
	}
}

// Waiting says whether somebody waits for t, so that a newcomer must queue.
func (m *Machine) Waiting(t target.Target) bool {
	if m.waiting.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.queues[t]
	return l != nil && l.held.n+l.ordinary.n > 0
}

// Update looks again at who serves t: waiters are released or held again, and
// free slots are granted. It must be called after every change of a replica and
// whenever a slot became free.
func (m *Machine) Update(t target.Target) {
	// The caller changed the replicas before this load, a waiter counts itself
	// before it looks at them: one of the two sees the other.
	// A wake whose waiters have all left is still there to be learned from.
	if m.waiting.Load() == 0 && m.waking.Load() == 0 {
		return
	}
	m.change(func() {
		m.update(t)
		for other := range m.queues {
			if other != t && other.Model == t.Model {
				m.update(other) // room in the gate is for all kinds of a model
			}
		}
	})
}

// UpdateAll looks again at everybody who waits. It is for what Slots knows and does
// not tell by Update.
func (m *Machine) UpdateAll() {
	if m.waiting.Load() == 0 {
		return
	}
	m.change(func() {
		for t, l := range m.queues {
			l.look = true
			m.update(t)
		}
	})
}

func (m *Machine) update(t target.Target) {
	serving := m.o.Slots.Serving(t)
	if serving {
		m.woke(t)
	}
	l := m.queues[t]
	if l == nil {
		return
	}
	if serving != l.serving {
		l.serving, l.look = serving, true
		event := Down
		if serving {
			event = Up
		}
		if n := l.held.n; serving && n > 0 {
			m.after = append(m.after, func() { m.o.OnRelease(t, n) })
		}
		l.held.each(func(w *Waiter) { m.apply(w, event) })
	}
	if serving {
		m.grant(l)
	} else {
		l.ordinary.each(func(w *Waiter) { m.apply(w, Down) })
	}
}

// Fail ends the waiters of a model whose wake failed, and refuses new ones for
// the cooldown.
func (m *Machine) Fail(name, reason string) {
	m.change(func() {
		mod := m.model(name)
		mod.failedUntil, mod.failure = time.Now().Add(m.o.Cooldown), reason
		m.lookAgain(mod, m.o.Cooldown)
		m.giveUp(mod)
		m.eachHeld(func(t target.Target, w *Waiter) {
			if t.Model == name && w.state == Held {
				w.reason = reason
				m.apply(w, Fail)
			}
		})
		m.tell(mod)
	})
}

// Reconcile ends the waiters whose target may no longer be held. holdable is
// called under the lock and kept for waiters that a replica serves now.
func (m *Machine) Reconcile(holdable func(target.Target) bool) {
	m.change(func() {
		m.holdable = holdable
		m.eachHeld(func(t target.Target, w *Waiter) {
			if !holdable(t) {
				m.apply(w, Unplace)
			}
		})
	})
}

// Revoke ends the waiters of keys that are no longer good.
func (m *Machine) Revoke(good func(key string) bool) {
	m.change(func() {
		for _, l := range m.queues {
			for _, line := range []*queue{&l.held, &l.ordinary} {
				line.each(func(w *Waiter) {
					if w.request.Key != "" && !good(w.request.Key) {
						m.apply(w, Revoke)
					}
				})
			}
		}
	})
}

// Drain ends every waiter and refuses new ones.
func (m *Machine) Drain() {
	m.change(func() {
		m.draining = true
		for _, l := range m.queues {
			l.held.each(func(w *Waiter) { m.apply(w, Drain) })
			l.ordinary.each(func(w *Waiter) { m.apply(w, Drain) })
		}
	})
}

func (m *Machine) eachHeld(f func(target.Target, *Waiter)) {
	for t, l := range m.queues {
		l.held.each(func(w *Waiter) { f(t, w) })
	}
}
