// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"cmp"
	"slices"
	"time"
)

// rank says how soon an agent can be woken, the best first.
type rank uint8

const (
	atOnce      rank = iota // its group has room
	soon                    // when agents that were told to sleep have ended
	afterIdle               // when idle agents have made room
	afterBusy               // when busy agents have
	notForeseen             // no agent may be asked to make room yet
)

// choice is an agent that could be woken, with those that must make room for it.
type choice struct {
	rec    *record // nil: none
	rank   rank
	makers []*record
}

// before orders choices, the better one first.
func (c choice) before(o choice) bool {
	return o.rec == nil || cmp.Or(
		cmp.Compare(c.rank, o.rank), cmp.Compare(c.rec.hello.info.ID, o.rec.hello.info.ID)) < 0
}

// plan is a group's room while arbitrate gives it out.
type plan struct {
	free int64 // what no agent takes, less what was given out
	room int64 // what is free or will be soon, less what was given out
	// makers are the agents that have to make room.
	makers map[*record]struct{}
}

// plans are the plans of all groups. No group has no plan.
type plans map[*group]*plan

func newPlan(g *group) *plan {
	p := &plan{free: g.room, room: g.room, makers: map[*record]struct{}{}}
	for rec := range g.members {
		if !rec.occupies() {
			continue
		}
		p.free -= rec.hello.group.cost
		if !rec.leaves() {
			p.room -= rec.hello.group.cost
		}
	}
	return p
}

// arbitrate gives the room of the groups in an area to the models that need it, first
// come first served. It looks at levels alone, and may be called at any time.
func (r *Registry) arbitrate(in area) {
	if len(in.groups) == 0 || r.draining || time.Since(r.epoch) < groupGrace {
		return
	}
	ps := plans{}
	for g := range in.groups {
		p := newPlan(g)
		ps[g] = p
		// Agents that woke without this router's word may be too many.
		makers, _ := r.makers(g, p, -p.room)
		r.makeRoom(p, makers)
	}
	for _, m := range r.line(in) {
		r.cover(m, ps)
	}
	r.reopen(ps)
}

// line gives the models of an area that need an agent of a group, in the order in
// which they came to need it.
func (r *Registry) line(in area) []*model {
	var line []*model
	for m := range in.models {
		if !m.wanted || !m.needsRoom() {
			m.turn = 0
			continue
		}
		line = append(line, m)
	}
	slices.SortFunc(line, func(a, b *model) int {
		return cmp.Or(cmp.Compare(a.turn-1, b.turn-1), // those without a turn come last
			a.wantedSince.Compare(b.wantedSince), cmp.Compare(a.name, b.name))
	})
	for _, m := range line {
		if m.turn == 0 {
			r.turns++
			m.turn = r.turns
		}
	}
	return line
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

// choose says how soon rec can be woken.
func (r *Registry) choose(rec *record, ps plans) choice {
	c := choice{rec: rec}
	p, cost := ps[rec.group], rec.hello.group.cost
	switch {
	case p == nil:
	case cost > p.room:
		c.makers, c.rank = r.makers(rec.group, p, cost-p.room)
	case rec.takesMore() > p.free:
		c.rank = soon
	}
	return c
}

// grant gives a choice its room, so that nobody behind it in the line takes
// that, and reports whether the agent can be woken at once.
func (r *Registry) grant(c choice, ps plans) bool {
	p, cost := ps[c.rec.group], c.rec.hello.group.cost
	if p == nil {
		return true
	}
	r.makeRoom(p, c.makers)
	p.room -= cost
	p.free -= c.rec.takesMore()
	return c.rank == atOnce
}

// maker is an agent that could make room. What slots say may change meanwhile, so
// it is looked at once.
type maker struct {
	rec   *record
	class int // 0: idle, 1: busy and being closed already, 2: busy
	since int64
}

// maker says how little rec would be missed.
func (r *Registry) maker(rec *record) maker {
	g := &rec.replica.gate
	switch {
	case g.inFlight() == 0 && !r.wantedAny(rec):
		return maker{rec, 0, g.idleSince.Load()}
	case rec.closing:
		return maker{rec, 1, int64(rec.upAt.Sub(r.epoch))}
	}
	return maker{rec, 2, int64(rec.upAt.Sub(r.epoch))}
}

// makers are the agents to go so that the group has so much room more: idle ones
// before busy ones, the longest idle and the longest up first, and none that
// need not go. None go when all together are too few.
func (r *Registry) makers(g *group, p *plan, need int64) (makers []*record, best rank) {
	if need <= 0 {
		return nil, atOnce
	}
	var list []maker
	for rec := range g.members {
		if _, asked := p.makers[rec]; !asked && r.mayClose(rec) {
			list = append(list, r.maker(rec))
			need -= rec.hello.group.cost
		}
	}
	if need > 0 {
		return nil, notForeseen
	}
	slices.SortFunc(list, func(a, b maker) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.since, b.since),
			cmp.Compare(a.rec.hello.info.ID, b.rec.hello.info.ID))
	})
	best = afterIdle
	for _, m := range slices.Backward(list) { // who should go least comes first
		if cost := m.rec.hello.group.cost; need+cost <= 0 {
			need += cost
			continue
		}
		makers = append(makers, m.rec)
		if m.class > 0 {
			best = afterBusy
		}
	}
	return makers, best
}

// makeRoom takes agents out of routing, so that they can be told to sleep.
func (r *Registry) makeRoom(p *plan, makers []*record) {
	for _, rec := range makers {
		p.makers[rec] = struct{}{}
		p.room += rec.hello.group.cost
		r.evict(rec)
	}
}
