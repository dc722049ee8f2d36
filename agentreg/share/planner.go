// SPDX-License-Identifier: Apache-2.0

package share

import (
	"cmp"
	"slices"
	"time"
)

// planner holds a plan while it is made.
type planner struct {
	Plan

	now      time.Time
	rooms    map[*Group]*room
	reserved map[*Group][]*Model // models that room is reserved for, in this order
}

// room is what remains of a group's room.
type room struct {
	free int64 // taken by no agent and not reserved by the plan
	soon int64 // free, and taken by agents that are leaving or that the plan closes
}

func newRoom(g *Group) *room {
	r := &room{free: g.Room, soon: g.Room}
	for _, a := range g.Agents {
		if !a.Occupies {
			continue
		}
		r.free -= a.Cost
		if !a.Leaving {
			r.soon -= a.Cost
		}
	}
	return r
}

// rank orders agents by how soon they can be woken.
type rank uint8

const (
	atOnce    rank = iota // its group has room
	soon                  // when agents that are leaving have left
	afterIdle             // when idle agents have made room
	afterBusy             // when busy agents have made room
	unknown               // the agents that may be closed now do not free enough room
)

// choice is an agent that could be woken, with the victims that it needs.
type choice struct {
	agent *Agent // nil: none
	victims
}

// before reports whether c is a better choice than o.
func (c choice) before(o choice) bool {
	return o.agent == nil || cmp.Or(cmp.Compare(c.rank, o.rank), cmp.Compare(c.agent.ID, o.agent.ID)) < 0
}

// cover reserves room for an agent for each kind of m that is not covered. The agent is
// woken now or waits for its room.
func (p *planner) cover(m *Model) {
	covered := m.covered()
	for {
		best := choice{}
		for _, a := range m.Agents {
			if a.CanWake && a.Kinds&^covered != 0 {
				if c := p.choose(a, m.Demand); c.before(best) {
					best = c
				}
			}
		}
		if best.agent == nil {
			break
		}
		p.reserve(best, m)
		covered |= best.agent.Kinds
	}
	if slices.ContainsFunc(m.Agents, func(a *Agent) bool { return a.Kinds&^covered != 0 }) {
		p.Unwakeable = append(p.Unwakeable, m)
	}
}

// choose returns how soon a can be woken, and which victims must be closed for that.
func (p *planner) choose(a *Agent, demand bool) choice {
	r := p.rooms[a.Group]
	c := choice{agent: a}
	switch {
	case r == nil:
	case a.Cost > r.soon:
		c.victims = p.victims(a.Group, a.Cost-r.soon, demand)
	case a.takesMore() > r.free:
		c.rank = soon
	}
	return c
}

// takesMore returns how much more room the agent takes when it is woken.
func (a *Agent) takesMore() int64 {
	if a.Occupies {
		return 0
	}
	return a.Cost
}

// reserve reserves room for c, so that no later model gets it. It plans the wake, or the wait
// for the room.
func (p *planner) reserve(c choice, m *Model) {
	r := p.rooms[c.agent.Group]
	if r == nil {
		p.Wake = append(p.Wake, Wake{c.agent, m})
		return
	}
	p.closeVictims(r, c.agents)
	r.soon -= c.agent.Cost
	r.free -= c.agent.takesMore()
	g := c.agent.Group
	before := p.reserved[g]
	p.reserved[g] = append(slices.Clip(before), m)
	if c.rank == atOnce {
		p.Wake = append(p.Wake, Wake{c.agent, m})
		return
	}
	w := Wait{Model: m, Agent: c.agent, For: p.awaited(c), Behind: before}
	w.From = p.earliest(w.For, m.Demand)
	p.Wait = append(p.Wait, w)
	p.planAgain(g, m.Demand)
}

// awaited returns the agents that c waits for: its victims, or else the agents that are
// leaving, or else all agents that take room.
func (p *planner) awaited(c choice) []*Agent {
	if len(c.agents) > 0 {
		return c.agents
	}
	var leaving, all []*Agent
	for _, a := range c.agent.Group.Agents {
		if !a.Occupies || a == c.agent {
			continue
		}
		all = append(all, a)
		if a.Leaving || p.Close[a] {
			leaving = append(leaving, a)
		}
	}
	if len(leaving) > 0 {
		return leaving
	}
	return all
}

// closeVictims plans that agents are closed.
func (p *planner) closeVictims(r *room, agents []*Agent) {
	for _, a := range agents {
		p.Close[a] = true
		r.soon += a.Cost
	}
}

// planAgain sets p.Next to the time at which the next agent of g may be closed, unless it is
// earlier already.
func (p *planner) planAgain(g *Group, demand bool) {
	if at := p.earliest(g.Agents, demand); !at.IsZero() && (p.Next.IsZero() || at.Before(p.Next)) {
		p.Next = at
	}
}

// earliest returns the earliest time at which one of the agents that may not be closed yet
// may be closed; zero if there is none.
func (p *planner) earliest(agents []*Agent, demand bool) (first time.Time) {
	for _, a := range agents {
		if at := a.closeFrom(demand, p.now); at.After(p.now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
