// SPDX-License-Identifier: Apache-2.0

package agentreg

// kindSet is a set of kinds.
type kindSet uint8

func kindsOf(rec *registration) kindSet {
	var s kindSet
	for _, k := range rec.hello.info.Kinds {
		s |= 1 << k
	}
	return s
}

// reconcile sends the Wakes that m needs, unless an agent of a group could take them:
// arbitrate, which must follow it, sends those. It is called after every change that
// could make one due, and may be called at any time.
func (r *Registry) reconcile(m *model) {
	if !m.need.Wanted() || r.draining || m.needsRoom() {
		return
	}
	for covered := m.covered(); ; {
		best := (*registration)(nil)
		missing := false
		for rec := range m.agents {
			if kindsOf(rec)&^covered == 0 {
				continue
			}
			missing = true
			if rec.hello.canWake && rec.asleep() && !rec.wakeFailed && (best == nil || rec.hello.info.ID < best.hello.info.ID) {
				best = rec
			}
		}
		if best == nil {
			if missing {
				r.fail(m)
			}
			return
		}
		r.wake(best, m)
		covered |= kindsOf(best)
	}
}

// needsRoom says whether a kind of m that an agent of a group has is not served.
func (m *model) needsRoom() bool {
	covered := m.covered()
	for rec := range m.agents {
		if rec.group != nil && kindsOf(rec)&^covered != 0 {
			return true
		}
	}
	return false
}

// fail reports once that m cannot be woken, if agents that could have served it have
// failed to wake or can never be woken. The reason is that of the wake that failed last.
func (r *Registry) fail(m *model) {
	covered := m.covered()
	var last *registration
	crowded := ""
	for rec := range m.agents {
		if kindsOf(rec)&^covered == 0 || !rec.hello.canWake || !rec.asleep() {
			continue
		}
		if text := rec.crowded(); text != "" {
			crowded = max(crowded, text) // any of them, but always the same
		} else if rec.wakeFailed && (last == nil || rec.failedAs > last.failedAs) {
			last = rec
		}
	}
	var reason string
	switch {
	case last != nil:
		reason, m.wakeDetail = last.wakeReason, last.wakeDetail
	case crowded != "":
		reason, m.wakeDetail = "its agents have no room", crowded
	default:
		return
	}
	if !m.exhausted {
		m.exhausted = true
		r.fx.failed = append(r.fx.failed, wakeFailure{model: m.name, reason: reason})
	}
}

// covered are the kinds of m that are served, or will be.
func (m *model) covered() kindSet {
	var covered kindSet
	for rec := range m.agents {
		if rec.routed || rec.waking() {
			covered |= kindsOf(rec)
		}
	}
	return covered
}
