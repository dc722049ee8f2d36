// SPDX-License-Identifier: Apache-2.0

package holdstate

import "time"

// Level is what the routers of a site tell one another of the need of a model.
type Level struct {
	Waiting  []Standing // the distinct requests that wait for the model, in no order
	Released int        // waiters of them for which a replica came, and that have no slot yet
	// WantedUntil is until when the model is wanted without a waiting request. Zero: it is not.
	WantedUntil time.Time
}

// Standing is where a request stands in the order of arrival.
type Standing struct {
	Identity uint64 // a hash of its key and its client's id, the same on every router
	Place    uint64 // see Machine.Place
}

// Empty reports whether the model is not wanted.
func (l *Level) Empty() bool { return len(l.Waiting) == 0 && l.WantedUntil.IsZero() }

// Level returns the level of a model.
func (m *Machine) Level(name string) (l Level) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mod := m.models[name]
	if mod == nil {
		return l
	}
	l.Waiting = make([]Standing, 0, len(mod.identities))
	for id, s := range mod.identities {
		l.Waiting = append(l.Waiting, Standing{Identity: uint64(id), Place: s.place})
	}
	if time.Now().Before(mod.wantedUntil) {
		l.WantedUntil = mod.wantedUntil
	}
	l.Released = mod.held - m.stillHeld(name)
	return l
}

// stillHeld returns how many waiters for a model have no replica.
func (m *Machine) stillHeld(name string) (n int) {
	for t, qs := range m.queues {
		if t.Model == name && !qs.serving {
			n += qs.priority.n
		}
	}
	return n
}

// Wanting returns the models that are wanted.
func (m *Machine) Wanting() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for name, mod := range m.models {
		if mod.need(now).Wanted() {
			names = append(names, name)
		}
	}
	return names
}
