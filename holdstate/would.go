// SPDX-License-Identifier: Apache-2.0

package holdstate

import "github.com/holdgate/holdgate/sitemap"

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

// WouldQueue is WouldHold for Queue.
func (m *Machine) WouldQueue(t sitemap.Target) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mayQueue(t)
}
