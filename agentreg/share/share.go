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

// Agent is one agent at the time of the plan.
type Agent struct {
	ID    string
	Group *Group // nil: it needs no room
	Cost  int64  // what it takes of the room while it is awake
	Kinds uint8  // the kinds of requests that it serves, one bit each

	Up       bool // it serves, or is about to
	CanWake  bool // it sleeps, and a Wake would start it
	Occupies bool // it takes of the room
	Leaving  bool // it takes of the room, but will not for long

	// CloseFrom is from when on it may be closed, for a model that requests wait for;
	// zero: it may not be.
	CloseFrom time.Time
	Closing   bool      // it is closed already, with requests in flight
	InFlight  bool      // it has requests
	IdleSince time.Time // when it had its last request
	UpSince   time.Time
	Demand    bool // requests wait for one of its models
	Wanted    bool // one of its models is wanted
}

// Model is a model that is wanted.
type Model struct {
	Name   string
	Demand bool      // requests wait for it; otherwise it is wanted ahead of requests
	Turn   uint64    // its position among those that need room; 0: none yet
	Since  time.Time // since when it is wanted
	Agents []*Agent
}

// Input is what a plan is made from. The models are those that have an agent in one
// of the groups, and that are wanted.
type Input struct {
	Now    time.Time
	Groups []*Group
	Models []*Model
}

// Plan is what to do.
type Plan struct {
	// Order has the models that need room, in the order in which they get it.
	Order []*Model
	// Wake has the agents to wake now.
	Wake []Wake
	// Close has the victims: the agents that make room. All others are open.
	Close map[*Agent]bool
	// Wait has the models that wait for room.
	Wait []Wait
	// Unwakeable has the models of which a kind has no agent that is up or could be woken.
	Unwakeable []*Model
	// Next is when the plan may change without a change of its input; zero: never.
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
	// For has the agents that must leave their room first, Behind the models that get
	// room of the group before.
	For    []*Agent
	Behind []*Model
	// From is when the first agent that may not be closed yet may be; zero: there is none,
	// or it is not known.
	From time.Time
}

// Make returns the plan.
func Make(in Input) *Plan {
	p := &planner{now: in.Now, rooms: map[*Group]*room{}, given: map[*Group][]*Model{}}
	p.Close = map[*Agent]bool{}
	for _, g := range in.Groups {
		r := newRoom(g)
		p.rooms[g] = r
		// More agents may be awake than there is room for: others may have woken them.
		p.makeRoom(r, p.victims(g, -r.soon, true).agents)
		if r.soon < 0 {
			p.planAgain(g, true)
		}
	}
	p.Order = order(in.Models)
	for _, m := range p.Order {
		p.cover(m)
	}
	return &p.Plan
}

// order returns the models that need room, in the order in which they get it.
func order(models []*Model) []*Model {
	var list []*Model
	for _, m := range models {
		if m.needsRoom() {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *Model) int {
		if a.Demand != b.Demand {
			if a.Demand {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Turn-1, b.Turn-1), // 0, which is no turn, wraps around: last
			a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return list
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

// needsRoom reports whether an agent of a group has a kind that is not served.
func (m *Model) needsRoom() bool {
	covered := m.covered()
	return slices.ContainsFunc(m.Agents, func(a *Agent) bool { return a.Group != nil && a.Kinds&^covered != 0 })
}
