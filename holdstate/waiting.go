// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"slices"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// Group is the requests of one caller that wait for a target.
type Group struct {
	Target        target.Target
	KeyID, Tenant string // of the caller, as their requests have them
	Requests      int
	Held          int       // those of them that no replica serves yet
	Since         time.Time // when the first of them began to wait
}

// Groups returns the requests that wait, by target and caller, those that wait longest first.
func (m *Machine) Groups() []Group {
	if m.waiting.Load() == 0 {
		return nil
	}
	type name struct {
		t           target.Target
		key, tenant string
	}
	groups := map[name]*Group{}
	m.mu.Lock()
	m.each(func(w *Waiter) {
		r := &w.request
		n := name{r.Target, r.KeyID, r.Tenant}
		g := groups[n]
		if g == nil {
			g = &Group{Target: r.Target, KeyID: r.KeyID, Tenant: r.Tenant, Since: w.joined}
			groups[n] = g
		}
		g.Requests++
		if w.state == Held {
			g.Held++
		}
		if w.joined.Before(g.Since) {
			g.Since = w.joined
		}
	})
	m.mu.Unlock()
	list := make([]Group, 0, len(groups))
	for _, g := range groups {
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b Group) int { return a.Since.Compare(b.Since) })
	return list
}

// WakeTime returns how long nine of ten wakes of a model took, 0 while fewer than three were
// measured.
func (m *Machine) WakeTime(model string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.wakes.find(model); h != nil {
		return h.p90
	}
	return 0
}
