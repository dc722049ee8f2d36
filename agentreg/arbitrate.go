// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	"github.com/holdgate/holdgate/agentreg/share"
)

// arbitrate plans the room of the groups in an area, and carries the plan out. It
// depends on the present state alone, and may be called at any time.
func (r *Registry) arbitrate(in area) {
	if len(in.groups) == 0 || r.draining {
		return
	}
	now := time.Now()
	if wait := r.epoch.Add(r.opts.GroupGrace).Sub(now); wait > 0 {
		in.lookAgain(wait)
		return
	}
	input, recs := r.planInput(in, now)
	plan := share.Make(input)
	r.noteTurns(in, plan)
	r.carryOut(plan, recs)
	if plan.Next.IsZero() {
		for g := range in.groups {
			g.timer.Stop()
		}
		return
	}
	in.lookAgain(max(plan.Next.Sub(now), 0))
}

// lookAgain has the groups arbitrated again after a while.
func (in area) lookAgain(after time.Duration) {
	for g := range in.groups {
		g.timer.Reset(after)
	}
}

// planInput describes groups and models to the planner. It also returns the agents
// that the planner's stand for.
func (r *Registry) planInput(in area, now time.Time) (share.Input, map[*share.Agent]*registration) {
	input := share.Input{Now: now}
	recs := map[*share.Agent]*registration{}
	agents := map[*registration]*share.Agent{}
	describe := func(rec *registration, g *share.Group) *share.Agent {
		a := r.planAgent(rec)
		a.Group = g
		recs[a], agents[rec] = rec, a
		return a
	}
	for g := range in.groups {
		sg := &share.Group{Name: g.name, Room: g.room}
		for rec := range g.members {
			sg.Agents = append(sg.Agents, describe(rec, sg))
		}
		input.Groups = append(input.Groups, sg)
	}
	for m := range in.models {
		m.wait = nil
		if !m.need.Wanted() {
			m.turn = 0
			continue
		}
		sm := &share.Model{Name: m.name, Demand: m.need.Demand, Turn: m.turn, Since: m.wantedSince}
		for rec := range m.agents {
			a := agents[rec]
			if a == nil { // of no group
				a = describe(rec, nil)
			}
			if a.CanWake && rec.group != nil && !m.need.Demand && m.need.Ahead == m.spent {
				spent := *a // the wish was for one start
				spent.CanWake = false
				a = &spent
			}
			sm.Agents = append(sm.Agents, a)
		}
		input.Models = append(input.Models, sm)
	}
	return input, recs
}

// planAgent describes an agent to the planner.
func (r *Registry) planAgent(rec *registration) *share.Agent {
	g := &rec.replica.gate
	a := &share.Agent{
		ID: rec.hello.info.ID, Cost: rec.hello.group.cost, Kinds: uint8(kindsOf(rec)),
		Up:       rec.routed || rec.waking(),
		CanWake:  rec.hello.canWake && rec.asleep() && !rec.wakeFailed && rec.crowded() == "",
		Occupies: rec.occupies(), Leaving: rec.leaves(),
		CloseFrom: r.closeFrom(rec), Closing: rec.closing, InFlight: g.inFlight() > 0,
		IdleSince: r.epoch.Add(time.Duration(g.idleSince.Load())), UpSince: rec.upAt,
	}
	for _, name := range rec.hello.info.Models {
		if m := r.models[name]; m != nil {
			a.Demand = a.Demand || m.need.Demand
			a.Wanted = a.Wanted || m.need.Wanted()
		}
	}
	return a
}

// noteTurns gives the models of the plan's line that have no turn the next ones.
func (r *Registry) noteTurns(in area, plan *share.Plan) {
	inLine := map[*model]bool{}
	for _, sm := range plan.Line {
		m := r.models[sm.Name]
		inLine[m] = true
		if m.turn == 0 {
			r.turns++
			m.turn = r.turns
		}
	}
	for m := range in.models {
		if !inLine[m] {
			m.turn = 0
		}
	}
}

// carryOut does what the plan says. Agents are closed before others are woken.
func (r *Registry) carryOut(plan *share.Plan, recs map[*share.Agent]*registration) {
	for a, rec := range recs {
		switch {
		case plan.Close[a]:
			r.evict(rec)
		case rec.closing: // it need not make room any more
			rec.closing = false
			r.route(rec)
			r.arm(rec)
		}
	}
	for _, w := range plan.Wait {
		r.models[w.Model.Name].wait = newRoomWait(w)
	}
	for _, sm := range plan.Helpless {
		r.fail(r.models[sm.Name])
	}
	for _, w := range plan.Wake {
		r.wake(recs[w.Agent], r.models[w.Model.Name])
	}
}
