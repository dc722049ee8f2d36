// SPDX-License-Identifier: Apache-2.0

package holdstate

import "github.com/holdgate/holdgate/internal/target"

// WouldHold gives the error with which Hold would refuse r at this moment, nil
// when it would not. Nothing changes by it.
func (m *Machine) WouldHold(r Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	mod := m.models[r.Target.Model]
	if mod == nil {
		mod = &model{}
	}
	return m.mayHold(mod, r)
}

// WouldQueue is WouldHold for Queue, of a request that has room or has none.
func (m *Machine) WouldQueue(t target.Target, room bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mayQueue(Request{Target: t}, room)
}

// Depths counts those of a model that wait for room in the gate, and those that
// wait for a slot.
func (m *Machine) Depths(model string) (gated, queued int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, l := range m.queues {
		if t.Model != model || !l.serving {
			continue
		}
		for _, q := range []*queue{&l.held, &l.ordinary} {
			gated += q.gated
			queued += q.n - q.gated
		}
	}
	return gated, queued
}
