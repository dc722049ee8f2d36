// SPDX-License-Identifier: Apache-2.0

package events

import (
	"strings"
	"sync"
	"time"
)

// Models adds an event when the state of a model has changed. It is safe for concurrent use.
type Models struct {
	log *Log

	mu     sync.Mutex
	states map[string]state
}

// state is what a model was last seen in.
type state struct {
	name  string // as in the status: warm, waking, asleep or elsewhere
	since time.Time
}

// NewModels returns Models that have seen no model.
func NewModels(l *Log) *Models { return &Models{log: l, states: map[string]state{}} }

// Saw notes the state of a model at this moment. A model that was not seen before has an event
// unless it sleeps.
func (m *Models) Saw(model, name string) {
	m.mu.Lock()
	before := m.states[model].name
	if before == name {
		m.mu.Unlock()
		return
	}
	m.states[strings.Clone(model)] = state{name: name, since: time.Now()}
	m.mu.Unlock()
	switch {
	case name == "warm":
		m.log.Add(Event{Type: Awake, Model: model})
	case name == "waking":
		m.log.Add(Event{Type: Waking, Model: model})
	case before == "warm" || before == "waking":
		m.log.Add(Event{Type: Asleep, Model: model})
	}
}

// Gone forgets a model that is not known any more.
func (m *Models) Gone(model string) {
	m.mu.Lock()
	before := m.states[model].name
	delete(m.states, model)
	m.mu.Unlock()
	if before == "warm" || before == "waking" {
		m.log.Add(Event{Type: Asleep, Model: model})
	}
}

// WakingSince returns when the model was first seen in state waking; zero: it is not.
func (m *Models) WakingSince(model string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.states[model]; s.name == "waking" {
		return s.since
	}
	return time.Time{}
}
