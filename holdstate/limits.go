// SPDX-License-Identifier: Apache-2.0

package holdstate

import "time"

// Limits bound what may wait. Every field must be above 0, except QueueDepth and
// BytesPerModel.
type Limits struct {
	PerModel int   // requests held per model
	PerKey   int   // requests held per key and model; no limit without a key
	Total    int   // requests held over all models
	Bytes    int64 // body bytes held over all models
	// BytesPerModel is body bytes held for one model while Others may be held; 0: as
	// many as Bytes allows.
	BytesPerModel int64
	// QueueDepth is how many ordinary requests may wait, per model and kind; 0: none may
	// wait for a slot.
	QueueDepth int
}

// usage is what counts against the limits, apart from what counts per model.
type usage struct {
	held         int              // waiters of Hold without a slot
	bytes        int64            // body bytes of all waiters
	bytesByModel map[string]int64 // body bytes by model; a model with none has no entry
}

// addBytes counts body bytes of w; n is negative for bytes that are freed.
func (w *Waiter) addBytes(n int64) {
	u, model := &w.m.usage, w.request.Target.Model
	w.bytes += n
	u.bytes += n
	if u.bytesByModel[model] += n; u.bytesByModel[model] == 0 {
		delete(u.bytesByModel, model)
	}
}

// Held returns the number of requests that are held, or released and without a slot yet.
func (m *Machine) Held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

// WouldHold returns the error with which Hold would refuse r now, or nil.
func (m *Machine) WouldHold(r Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	mod := m.models[r.Target.Model]
	if mod == nil {
		mod = &model{}
	}
	return m.checkHold(mod, r)
}

// WouldQueue returns the error with which Queue would refuse r now, or nil.
func (m *Machine) WouldQueue(r Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkQueue(r)
}

// checkHold returns the error with which Hold refuses r, or nil.
func (m *Machine) checkHold(mod *model, r Request) error {
	l := m.o.Limits
	switch {
	case m.draining:
		return ErrDraining
	case time.Now().Before(mod.failedUntil):
		return &FailedError{Reason: mod.failure}
	case mod.held >= l.PerModel, m.held >= l.Total, m.bytes+r.Bytes > l.Bytes,
		r.Key != "" && mod.byKey[r.Key] >= l.PerKey, !m.hasModelBytes(r):
		return ErrFull
	}
	return nil
}

// hasModelBytes reports whether BytesPerModel allows the body of r too. It is for
// fairness: no model may use up the bytes that others need.
func (m *Machine) hasModelBytes(r Request) bool {
	model, l := r.Target.Model, m.o.Limits.BytesPerModel
	return l == 0 || r.Bytes == 0 || m.bytesByModel[model]+r.Bytes <= l || !m.o.Others(model)
}

// checkQueue returns the error with which Queue refuses r, or nil. A retry may always wait.
// With a depth of 0 requests may still wait for a reservation, only not for a slot.
func (m *Machine) checkQueue(r Request) error {
	qs, depth := m.queues[r.Target], m.o.Limits.QueueDepth
	switch {
	case m.draining:
		return ErrDraining
	case r.Retry:
	case depth == 0 && r.Reservation != nil, depth > 0 && qs != nil && qs.ordinary.n >= depth:
		return ErrNoQueue
	}
	return nil
}
