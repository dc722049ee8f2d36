// SPDX-License-Identifier: Apache-2.0

package share

import (
	"cmp"
	"slices"
	"time"
)

// Quiet is how long an agent must have been without requests before it is closed
// for a model that no request waits for.
const Quiet = 10 * time.Second

// Group is agents that share room.
type Group struct {
	Name   string
	Room   int64
	Agents []*Agent
}

// Agent is one agent at the moment of the plan.
type Agent struct {
	ID    string
	Group *Group // nil: it needs no room
	Cost  int64  // what it takes of the room while it is awake
	Kinds uint8  // the kinds of requests that it serves, one bit each

	Up       bool // it serves, or was told to wake
	CanWake  bool // it sleeps, and a Wake would start it
	Occupies bool // it takes of the room
	Leaving  bool // it takes of the room, and soon will not

	// CloseFrom is from when on it may be closed; zero: it may not be.
	CloseFrom time.Time
	Closing   bool      // it is closed already, and its last requests are running
	InFlight  bool      // it has requests
	IdleSince time.Time // when it had its last request
	UpSince   time.Time
	Demand    bool // requests wait for one of its models
	Wanted    bool // one of its models is wished for
}

// Model is a model that is wanted.
type Model struct {
	Name   string
	Demand bool      // requests wait for it; else it is only wished for
	Turn   uint64    // its place among those that need room; 0: it has none yet
	Since  time.Time // when it came to be wanted
	Agents []*Agent
}

// Input is what a plan is made from. The models are those that have an agent in one
// of the groups, and that are wanted.
type Input struct {
	Now    time.Time
	Groups []*Group
	Models []*Model
}

// Plan says what to do.
type Plan struct {
	// Line is the models in the order in which they get room. It has only those that
	// need some.
	Line []*Model
	// Wake is who is to be woken at once.
	Wake []Wake
	// Close is the agents that make room. All others are open.
	Close map[*Agent]bool
	// Wait is the models that wait for room.
	Wait []Wait
	// Helpless is the models of which a kind has no agent that is up or could be woken.
	Helpless []*Model
	// Next is when the plan may change by the passing of time alone; zero: never.
	Next time.Time
}

// Wake is an agent that is to be woken for a model.
type Wake struct {
	Agent *Agent
	Model *Model
}

// Wait is a model that waits for the room of an agent's group.
type Wait struct {
	Model *Model
	Agent *Agent
	// For is the agents that must give up their room first, Behind the models that the
	// plan gives room of the group before.
	For    []*Agent
	Behind []*Model
	// From is when the first of the agents may be closed that may not be yet; zero: that
	// is not known, or none has to be waited for.
	From time.Time
}

// Make makes the plan.
func Make(in Input) *Plan {
	p := &planner{now: in.Now, rooms: map[*Group]*room{}, given: map[*Group][]*Model{}}
	p.Close = map[*Agent]bool{}
	for _, g := range in.Groups {
		r := newRoom(g)
		p.rooms[g] = r
		// Agents that were woken by somebody else may be too many.
		p.makeRoom(r, p.victims(g, -r.soon, true).agents)
		if r.soon < 0 {
			p.lookAgain(g, true)
		}
	}
	p.Line = line(in.Models)
	for _, m := range p.Line {
		p.cover(m)
	}
	return &p.Plan
}

// line orders the models that need room.
func line(models []*Model) []*Model {
	var l []*Model
	for _, m := range models {
		if m.needsRoom() {
			l = append(l, m)
		}
	}
	slices.SortFunc(l, func(a, b *Model) int {
		if a.Demand != b.Demand {
			if a.Demand {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Turn-1, b.Turn-1), // those without a turn come last
			a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return l
}

// covered is the kinds that are served, or will be.
func (m *Model) covered() (kinds uint8) {
	for _, a := range m.Agents {
		if a.Up {
			kinds |= a.Kinds
		}
	}
	return kinds
}

// needsRoom says whether an agent of a group has a kind that is not served.
func (m *Model) needsRoom() bool {
	covered := m.covered()
	return slices.ContainsFunc(m.Agents, func(a *Agent) bool { return a.Group != nil && a.Kinds&^covered != 0 })
}
