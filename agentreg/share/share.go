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

// Group is a set of agents that share room.
type Group struct {
	Name   string
	Room   int64
	Agents []*Agent
}

// Agent is one agent at the time of the plan.
type Agent struct {
	ID    string
	Group *Group // nil: it needs no room
	Cost  int64  // how much room it takes while it is awake
	Kinds uint8  // the kinds of requests that it serves, one bit each

	Up       bool // it serves, or is about to
	CanWake  bool // it sleeps, and a Wake would start it
	Occupies bool // it takes room, or may
	Leaving  bool // it takes room that will be free soon

	// CloseFrom is the time from which it may be closed for a model that requests wait
	// for; zero: it may not be.
	CloseFrom time.Time
	Closing   bool      // an earlier plan closed it, and it has requests in flight
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

// Input is what a plan is made from. The models are the wanted ones that have an agent in
// one of the groups.
type Input struct {
	Now    time.Time
	Groups []*Group
	Models []*Model
}

// Plan is the result of Make.
type Plan struct {
	// Order is the models that need room, in the order in which they get it.
	Order []*Model
	// Wake is the agents to wake now.
	Wake []Wake
	// Close is the set of victims: the agents to close to make room. All others are open.
	Close map[*Agent]bool
	// Wait is the models that wait for room.
	Wait []Wait
	// Unwakeable is the models with a kind that no agent serves or could be woken for.
	Unwakeable []*Model
	// Next is when the plan must be made again even if only time has passed; zero: never.
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
	// For is the agents that must free their room first, Behind the models that get room
	// in the group before this one.
	For    []*Agent
	Behind []*Model
	// From is the earliest time at which one of the agents of For that may not be closed
	// yet may be closed; zero: there is none, or it is not known.
	From time.Time
}

// Make returns the plan.
func Make(in Input) *Plan {
	p := &planner{now: in.Now, rooms: map[*Group]*room{}, reserved: map[*Group][]*Model{}}
	p.Close = map[*Agent]bool{}
	for _, g := range in.Groups {
		r := newRoom(g)
		p.rooms[g] = r
		// More agents may be awake than there is room for: another router may have woken them.
		p.closeVictims(r, p.victims(g, -r.soon, true).agents)
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
		return cmp.Or(cmp.Compare(a.Turn-1, b.Turn-1), // no turn, 0, wraps around and sorts last
			a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// covered returns the kinds that are served, or will be when wakes in progress end.
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
