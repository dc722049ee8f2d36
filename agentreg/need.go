// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"iter"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// model is one model that has agents or is wanted.
type model struct {
	name        string
	agents      map[*registration]struct{} // that offer it, without those that are leaving
	need        target.Need
	servedAhead uint64 // the last Need.Ahead during which the model was up
	wantedSince time.Time

	failureReported bool   // OnWakeFailed was called and no Wake sent since
	wakeDetail      string // of the last failed wake, for operators

	turn uint64    // its position among the models that need a group's room; 0: none
	wait *RoomWait // nil: it waits for no group's room
}

// models holds the models that have agents or are wanted, by name.
type models map[string]*model

// getOrAdd returns the model with this name, and adds it if there is none.
func (ms models) getOrAdd(name string) *model {
	m := ms[name]
	if m == nil {
		m = &model{name: name, agents: map[*registration]struct{}{}}
		ms[name] = m
	}
	return m
}

// ofAgent returns the models of an agent, except those that removeIfUnused has removed.
func (ms models) ofAgent(a *registration) iter.Seq[*model] {
	return func(yield func(*model) bool) {
		for _, name := range a.hello.info.Models {
			if m := ms[name]; m != nil && !yield(m) {
				return
			}
		}
	}
}

// needOf reports whether requests wait for a model of the agent, and whether one is
// wanted.
func (ms models) needOf(a *registration) (demand, wanted bool) {
	for m := range ms.ofAgent(a) {
		demand = demand || m.need.Demand
		wanted = wanted || m.need.Wanted()
	}
	return demand, wanted
}

// removeAgent removes an agent from all its models.
func (ms models) removeAgent(a *registration) {
	for m := range ms.ofAgent(a) {
		delete(m.agents, a)
	}
}

// removeIfUnused removes m if it has no agents and is not wanted.
func (ms models) removeIfUnused(m *model) {
	if len(m.agents) == 0 && !m.need.Wanted() {
		delete(ms, m.name)
	}
}

// SetNeed sets whether and why a model should be up. While it is wanted and no agent serves
// it, agents that can be woken are sent a Wake. When requests begin to wait for it, or it is
// wanted again, agents that failed to wake before are sent another Wake, unless they are in
// a group, where a Wake may cost another model its room.
func (r *Registry) SetNeed(name string, need target.Need) {
	r.update(func() {
		if r.models[name] == nil && !need.Wanted() {
			return
		}
		m := r.models.getOrAdd(name)
		if need == m.need {
			return
		}
		m.setNeed(need)
		r.reconcile(m)
		r.scopeOf(m).arbitrate()
		r.models.removeIfUnused(m)
	})
}

func (m *model) setNeed(need target.Need) {
	before := m.need
	m.need = need
	if need.Wanted() && !before.Wanted() {
		m.wantedSince = time.Now()
	}
	begins := need.Demand && !before.Demand || need.Wanted() && !before.Wanted()
	if begins {
		m.failureReported = false
	}
	for a := range m.agents {
		if begins && a.group == nil {
			a.failures.blocked = false
		}
		if before.Demand && !need.Demand {
			a.attempt.demandAt = time.Now()
		}
		if a.routed {
			m.servedAhead = need.Ahead
		}
		a.setTimer()
	}
}

// reconcile sends the Wakes that m needs. If an agent of a group could serve m, it sends
// none: scope.arbitrate, which the caller must call next, does. It depends only on the
// current state and may be called at any time: a Wake that was lost is sent again.
func (r *Registry) reconcile(m *model) {
	if !m.need.Wanted() || r.draining || m.needsRoom() {
		return
	}
	wake, complete := m.missing()
	for _, a := range wake {
		a.wake(m)
	}
	if !complete {
		r.reportFailure(m)
	}
}

// missing returns the agents to wake so that each kind of m is served. complete is false
// if a kind remains that no agent can be woken for.
func (m *model) missing() (wake []*registration, complete bool) {
	for covered := m.covered(); ; {
		var best *registration
		complete = true
		for a := range m.agents {
			if a.hello.kinds()&^covered == 0 {
				continue
			}
			complete = false
			if a.wakeable() && (best == nil || a.hello.info.ID < best.hello.info.ID) {
				best = a
			}
		}
		if best == nil {
			return wake, complete
		}
		wake = append(wake, best)
		covered |= best.hello.kinds()
	}
}

// needsRoom reports whether an agent of a group has a kind of m that is not served.
func (m *model) needsRoom() bool {
	covered := m.covered()
	for a := range m.agents {
		if a.group != nil && a.hello.kinds()&^covered != 0 {
			return true
		}
	}
	return false
}

// covered returns the kinds of m that are served, or will be when wakes in progress end.
func (m *model) covered() (kinds kindSet) {
	for a := range m.agents {
		if a.upOrWaking() {
			kinds |= a.hello.kinds()
		}
	}
	return kinds
}

// reportFailure makes a call of OnWakeFailed due if agents that could have served m failed
// to wake or can never be woken. It does so once until the next Wake.
func (r *Registry) reportFailure(m *model) {
	reason, detail := m.failure()
	if reason == "" {
		return
	}
	m.wakeDetail = detail
	if !m.failureReported {
		m.failureReported = true
		r.due.failed = append(r.due.failed, wakeFailure{model: m.name, reason: reason})
	}
}

// failure returns why m cannot be woken: the failure of the last failed wake, or else the
// lack of room in a group. The reason is empty if neither is the cause.
func (m *model) failure() (reason, detail string) {
	covered := m.covered()
	var last *registration
	shortage := ""
	for a := range m.agents {
		if a.hello.kinds()&^covered == 0 || !a.hello.canWake || !a.asleep() {
			continue
		}
		if text := a.roomShortage(); text != "" {
			shortage = max(shortage, text) // any one would do; max makes the choice stable
		} else if a.failures.blocked && (last == nil || a.failures.number > last.failures.number) {
			last = a
		}
	}
	switch {
	case last != nil:
		return last.failures.reason, last.failures.detail
	case shortage != "":
		return "its agents have no room", shortage
	}
	return "", ""
}
