// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// Options are a machine's settings and collaborators. Slots is required.
type Options struct {
	Limits   Limits
	Linger   time.Duration // how long a model stays wanted after a waiter has left unserved
	Cooldown time.Duration // how long a failed wake refuses new holds
	InOrder  bool          // slots by arrival alone instead of fairly across keys
	Slots    Slots
	// Others reports whether requests for models other than this one may be held; nil: they
	// may. It is called under the lock, and only if BytesPerModel would refuse a request.
	Others func(model string) bool
	// OnWanted is called when Need(model) may have changed.
	OnWanted func(model string)
	// PlaceOf returns the place in the order of arrival that another router gave to a request
	// for the model that is about to wait here, 0 for none. nil: there is no other router.
	// identity is as in Standing. It is called under the lock and must not call the machine.
	PlaceOf func(model string, identity uint64) uint64
	// OnLevel is called when the waiting requests of Level(model), or until when the model is
	// wanted, have changed; nil: nobody asks for levels.
	OnLevel func(model string)
	// OnLeft is called when the last waiter of a request was told that the router shuts down, or
	// its client left; nil: nobody asks.
	OnLeft func(model string, s Standing)
	// OnSlotWaiters is called when SlotWaiters(t) may have changed.
	OnSlotWaiters func(t target.Target)
	// OnRelease is called with the number of waiters that a registration released.
	OnRelease func(t target.Target, waiters int)
	// OnWake is called with how long a wake took, from the first request that waited to
	// the first replica.
	OnWake func(model string, took time.Duration)
	// OnQueued is called with how long a request waited for a slot, when that wait ends.
	OnQueued func(model string, waited time.Duration)
	// OnRefused is called when a waiter ends without a reservation or a slot that it waited
	// for.
	OnRefused func(model string, why error)
	// OnOutcome is called once for every held or refused request.
	OnOutcome func(o Outcome, held time.Duration)
}

// Machine has every waiter. It is safe for concurrent use.
type Machine struct {
	o       Options
	waiting atomic.Int64  // waiters in the queues; read without the lock
	waking  atomic.Int64  // models in a wake; read without the lock
	seq     atomic.Uint64 // the last place that was given

	mu sync.Mutex
	usage
	models   map[string]*model
	queues   map[target.Target]*queues
	wakes    wakes
	wants    uint64                   // the number of the last want without a waiting request
	draining bool                     // Drain was called
	ending   bool                     // EndAll was called
	holdable func(target.Target) bool // the last argument of Reconcile
	after    []func()                 // callbacks, run when the lock is released
	told     []target.Target          // those for which OnSlotWaiters is among them
}

// New returns a machine without waiters.
func New(o Options) *Machine {
	if o.Others == nil {
		o.Others = func(string) bool { return true }
	}
	if o.OnWanted == nil {
		o.OnWanted = func(string) {}
	}
	if o.OnSlotWaiters == nil {
		o.OnSlotWaiters = func(target.Target) {}
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
		o: o, bytesByModel: map[string]int64{}, models: map[string]*model{}, queues: map[target.Target]*queues{},
		holdable: func(target.Target) bool { return true },
	}
}

// change runs f under the lock and then the callbacks that f caused.
func (m *Machine) change(f func()) {
	m.mu.Lock()
	f()
	after := m.after
	m.after, m.told = nil, m.told[:0]
	m.mu.Unlock()
	for _, call := range after {
		call()
	}
}

// Hold adds a request for a model that sleeps. Its errors are ErrFull, ErrDraining and
// *FailedError. The caller must bring the waiter to its end with Report.
func (m *Machine) Hold(r Request) (*Waiter, error) {
	var w *Waiter
	var err error
	id := identityOf(r.Key, r.ClientIDs[:]...)
	m.change(func() {
		mod := m.model(r.Target.Model)
		if err = m.checkHold(mod, r); err != nil {
			mod.report()
			return
		}
		w = m.newWaiter(r, ofHold, id)
		w.enter()
	})
	if err == ErrFull && !r.Counted { //nolint:errorlint // made two lines above, never wrapped
		m.o.OnOutcome(OutcomeFull, 0)
	}
	return w, err
}

// Queue adds a request for a target that a replica serves. Its errors are ErrNoQueue and
// ErrDraining. The caller must bring the waiter to its end with Report.
func (m *Machine) Queue(r Request) (*Waiter, error) {
	var w *Waiter
	var err error
	id := identityOf(r.Key, r.ClientIDs[:]...)
	m.change(func() {
		if err = m.checkQueue(r); err != nil {
			return
		}
		w = m.newWaiter(r, ofQueue, id)
		w.state, w.released = Released, w.joined
		if r.Reservation != nil {
			w.state, w.reservation, w.admitted = Admitted, r.Reservation, w.joined
		}
		w.enter()
	})
	return w, err
}

// Place returns the next place in the order of arrival, for a request that arrived at a time. It
// is for the Seq of a request that got a slot without waiting, and may have to wait later. A
// place is the time in nanoseconds since 1970, or one more than the last place if that is later:
// the places of one machine are in the order of the calls, and those of several in the order
// of time, as far as their clocks agree.
func (m *Machine) Place(arrived time.Time) uint64 {
	now := uint64(max(0, arrived.UnixNano()))
	for {
		last := m.seq.Load()
		if next := max(last+1, now); m.seq.CompareAndSwap(last, next) {
			return next
		}
	}
}

// Waiting reports whether requests wait for t, so that a new one must queue.
func (m *Machine) Waiting(t target.Target) bool {
	if m.waiting.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	qs := m.queues[t]
	return qs != nil && !qs.empty()
}

// Depths returns how many requests for a model wait for a reservation, and how many for a
// slot.
func (m *Machine) Depths(model string) (gated, queued int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, qs := range m.queues {
		if t.Model != model || !qs.serving {
			continue
		}
		for _, q := range qs.all() {
			gated += q.gated
			queued += q.n - q.gated
		}
	}
	return gated, queued
}

// SlotWaiters returns how many requests wait for a slot for t.
func (m *Machine) SlotWaiters(t target.Target) int {
	if m.waiting.Load() == 0 {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	qs := m.queues[t]
	if qs == nil || !qs.serving {
		return 0
	}
	n := 0
	for _, q := range qs.all() {
		n += q.n - q.gated
	}
	return n
}

// slotWaitersChanged makes a call of OnSlotWaiters due.
func (m *Machine) slotWaitersChanged(t target.Target) {
	if !slices.Contains(m.told, t) {
		m.told = append(m.told, t)
		m.after = append(m.after, func() { m.o.OnSlotWaiters(t) })
	}
}

// Update releases or holds the waiters for t if its replicas have changed, and gives out
// reservations and free slots. It must be called after every change of a replica and
// whenever a slot became free.
func (m *Machine) Update(t target.Target) {
	// No change is missed without the lock: the caller changed the replicas before this
	// load, and a waiter is counted before it looks at the replicas.
	// A wake without waiters is measured too.
	if m.waiting.Load() == 0 && m.waking.Load() == 0 {
		return
	}
	m.change(func() {
		m.update(t)
		for other := range m.queues {
			if other != t && other.Model == t.Model {
				m.update(other) // the gate's limits are for all kinds of a model
			}
		}
	})
}

// UpdateAll is Update for every target, and tries the gate for every waiter. It is for
// changes that are not reported by Update.
func (m *Machine) UpdateAll() {
	if m.waiting.Load() == 0 {
		return
	}
	m.change(func() {
		for t, qs := range m.queues {
			qs.recheck = true
			m.update(t)
		}
	})
}

func (m *Machine) update(t target.Target) {
	serving := m.o.Slots.Serving(t)
	if mod := m.models[t.Model]; serving && mod != nil {
		mod.endWake(t)
	}
	qs := m.queues[t]
	if qs == nil {
		return
	}
	if serving != qs.serving {
		qs.serving, qs.recheck = serving, true
		event := Down
		if serving {
			event = Up
		}
		if n := qs.priority.n; serving && n > 0 {
			m.after = append(m.after, func() { m.o.OnRelease(t, n) })
		}
		qs.each(func(w *Waiter) { w.apply(event) })
	}
	if serving {
		qs.advance(m.o.Limits.QueueDepth)
	}
}

// Fail ends the waiters of a model whose wake failed, and refuses new ones for the
// cooldown.
func (m *Machine) Fail(name, reason string) { m.FailFor(name, reason, m.o.Cooldown) }

// FailFor is Fail with what is left of a cooldown.
func (m *Machine) FailFor(name, reason string, cooldown time.Duration) {
	m.change(func() {
		mod := m.model(name)
		if until := time.Now().Add(cooldown); !until.Before(mod.failedUntil) {
			mod.failedUntil, mod.failure = until, reason
			mod.reportIn(cooldown)
		}
		mod.stopWake()
		m.each(func(w *Waiter) {
			if w.request.Target.Model == name && w.state == Held {
				w.reason = reason
				w.apply(Fail)
			}
		})
		mod.report()
	})
}

// Reconcile ends the held waiters whose target may not be held any more. holdable is
// called under the lock, now and later, when a waiter that a replica serves is held again.
func (m *Machine) Reconcile(holdable func(target.Target) bool) {
	m.change(func() {
		m.holdable = holdable
		m.each(func(w *Waiter) {
			if !holdable(w.request.Target) {
				w.apply(Unplace)
			}
		})
	})
}

// Revoke ends the waiters of keys that are no longer valid.
func (m *Machine) Revoke(valid func(key string) bool) {
	m.change(func() {
		m.each(func(w *Waiter) {
			if w.request.Key != "" && !valid(w.request.Key) {
				w.apply(Revoke)
			}
		})
	})
}

// Drain refuses new waiters, and ends those whose answer has not begun: their clients can try
// another router. The others wait on until EndAll.
func (m *Machine) Drain() {
	m.change(func() {
		m.draining = true
		m.each((*Waiter).drain)
	})
}

// EndAll ends every waiter and refuses new ones.
func (m *Machine) EndAll() {
	m.change(func() {
		m.draining, m.ending = true, true
		m.each((*Waiter).drain)
	})
}

// each calls f for every waiter in the queues. f may end the waiter.
func (m *Machine) each(f func(*Waiter)) {
	for _, qs := range m.queues {
		qs.each(f)
	}
}
