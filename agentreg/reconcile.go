// SPDX-License-Identifier: Apache-2.0

package agentreg

// kindSet is a set of kinds.
type kindSet uint8

func kindsOf(rec *record) kindSet {
	var s kindSet
	for _, k := range rec.hello.info.Kinds {
		s |= 1 << k
	}
	return s
}

// reconcile sends the Wakes that m needs, but for agents of groups: arbitrate,
// which must follow it, sends those. It is called after every change that could
// make one due, and may be called at any time.
func (r *Registry) reconcile(m *model) {
	if m.wanted && !r.draining && !m.needsRoom() {
		r.cover(m, nil)
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

// cover finds an agent for each kind of m that is not covered, and wakes it if
// its group has room.
func (r *Registry) cover(m *model, ps plans) {
	covered := m.covered()
	for {
		c, failed := r.candidate(m, covered, ps)
		if c.rec == nil {
			if failed && !m.exhausted {
				m.exhausted = true
				r.fx.failed = append(r.fx.failed, wakeFailure{model: m.name, reason: m.wakeReason})
			}
			return
		}
		if r.grant(c, ps) {
			r.wake(c.rec, m)
		}
		covered |= kindsOf(c.rec)
	}
}

// candidate picks the agent to wake for a kind that is not covered: of those
// that can, the one that can soonest, or has the smallest id. Without one it
// says whether that is because agents failed to wake.
func (r *Registry) candidate(m *model, covered kindSet, ps plans) (best choice, failed bool) {
	for rec := range m.agents {
		if kindsOf(rec)&^covered == 0 || !rec.hello.canWake || !rec.asleep() {
			continue
		}
		crowded := rec.crowded()
		switch {
		case crowded != "":
			m.wakeReason, m.wakeDetail = "its agents have no room", crowded
			failed = true
		case rec.wakeFailed:
			failed = true
		default:
			if c := r.choose(rec, ps); c.before(best) {
				best = c
			}
		}
	}
	return best, failed
}
