// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	"github.com/holdgate/holdgate/agentreg/share"
)

// arbitrate plans which agents of the groups should be awake and carries out the plan. The
// plan depends only on the current state, so arbitrate may be called at any time.
func (s scope) arbitrate() {
	if len(s.groups) == 0 || s.registry.draining {
		return
	}
	now := time.Now()
	if wait := s.registry.epoch.Add(s.registry.opts.GroupGrace).Sub(now); wait > 0 {
		s.repeatAfter(wait)
		return
	}
	input, agents := s.plannerInput(now)
	plan := share.Make(input)
	s.setTurns(plan)
	s.carryOut(plan, agents)
	if plan.Next.IsZero() {
		for g := range s.groups {
			g.timer.Stop()
		}
		return
	}
	s.repeatAfter(max(plan.Next.Sub(now), 0))
}

// repeatAfter sets the groups' timers so that they are arbitrated again after d.
func (s scope) repeatAfter(d time.Duration) {
	for g := range s.groups {
		g.timer.Reset(d)
	}
}

// plannerInput returns the planner's view of the groups and models, and the registration
// of each agent in it.
func (s scope) plannerInput(now time.Time) (share.Input, map[*share.Agent]*registration) {
	input := share.Input{Now: now}
	agents := map[*share.Agent]*registration{}
	added := map[*registration]*share.Agent{}
	add := func(a *registration, g *share.Group) *share.Agent {
		sa := a.plannerAgent()
		sa.Group = g
		agents[sa], added[a] = a, sa
		return sa
	}
	for g := range s.groups {
		sg := &share.Group{Name: g.name, Room: g.room}
		for a := range g.members {
			sg.Agents = append(sg.Agents, add(a, sg))
		}
		input.Groups = append(input.Groups, sg)
	}
	for m := range s.models {
		m.wait = nil
		if !m.need.Wanted() {
			m.turn = 0
			continue
		}
		sm := &share.Model{Name: m.name, Demand: m.need.Demand, Turn: m.turn, Since: m.wantedSince}
		for a := range m.agents {
			sa := added[a]
			if sa == nil { // it is in no group
				sa = add(a, nil)
			}
			if sa.CanWake && a.group != nil && !m.need.Demand && m.need.Ahead == m.servedAhead {
				served := *sa // the model was already up for this wake ahead of requests
				served.CanWake = false
				sa = &served
			}
			sm.Agents = append(sm.Agents, sa)
		}
		input.Models = append(input.Models, sm)
	}
	return input, agents
}

// plannerAgent returns the planner's view of the agent.
func (a *registration) plannerAgent() *share.Agent {
	demand, wanted := a.registry.models.needOf(a)
	g := &a.replica.gate
	return &share.Agent{
		ID: a.hello.info.ID, Cost: a.hello.group.cost, Kinds: uint8(a.hello.kinds()),
		Up: a.upOrWaking(), CanWake: a.wakeable() && a.roomShortage() == "",
		Occupies: a.occupies(), Leaving: a.vacates(),
		CloseFrom: a.closeFrom(demand, wanted), Closing: a.closing, InFlight: g.inFlight() > 0,
		IdleSince: g.idleFrom(), UpSince: a.upAt, Demand: demand, Wanted: wanted,
	}
}

// setTurns numbers the models that need room and have no turn yet, in the order of the
// plan. Models that no longer need room lose their turn.
func (s scope) setTurns(plan *share.Plan) {
	ordered := map[*model]bool{}
	for _, sm := range plan.Order {
		m := s.registry.models[sm.Name]
		ordered[m] = true
		if m.turn == 0 {
			s.registry.turns++
			m.turn = s.registry.turns
		}
	}
	for m := range s.models {
		if !ordered[m] {
			m.turn = 0
		}
	}
}

// carryOut carries out the plan. Victims are closed before other agents are woken.
func (s scope) carryOut(plan *share.Plan, agents map[*share.Agent]*registration) {
	r := s.registry
	for sa, a := range agents {
		switch {
		case plan.Close[sa]:
			a.makeRoom()
		case a.closing:
			a.reopen()
		}
	}
	for _, w := range plan.Wait {
		r.models[w.Model.Name].wait = newRoomWait(w)
	}
	for _, sm := range plan.Unwakeable {
		r.reportFailure(r.models[sm.Name])
	}
	for _, w := range plan.Wake {
		agents[w.Agent].wake(r.models[w.Model.Name])
	}
}
