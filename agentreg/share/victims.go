// SPDX-License-Identifier: Apache-2.0

package share

import (
	"cmp"
	"slices"
	"time"
)

// victims are the agents to close so that another one can be woken, and how soon it can be.
type victims struct {
	agents []*Agent
	rank   rank
}

// class ranks agents as victims, the first choice first.
type class uint8

const (
	idle    class = iota // it has no requests, and none of its models is wanted
	ahead                // it has no requests, and none waits for it
	closing              // an earlier plan closed it, and it has requests in flight
	busy                 // the others
)

func (a *Agent) class() class {
	switch {
	case !a.InFlight && !a.Demand && !a.Wanted:
		return idle
	case !a.InFlight && !a.Demand:
		return ahead
	case a.Closing:
		return closing
	}
	return busy
}

// since returns when an agent without requests had its last one, or when an agent with
// requests came up. Within a class, the agent with the earliest time is closed first.
func (a *Agent) since() time.Time {
	if a.class() <= ahead {
		return a.IdleSince
	}
	return a.UpSince
}

// closeFrom returns the time from which the agent may be closed, zero for never: for a model
// that requests wait for if demand is true, else for one that is wanted ahead of requests.
// If the agent has requests in flight it is the earliest possible time.
func (a *Agent) closeFrom(demand bool, now time.Time) time.Time {
	switch {
	case demand || a.CloseFrom.IsZero():
		return a.CloseFrom
	case a.Demand || a.Wanted:
		return time.Time{}
	}
	quiet := a.IdleSince.Add(Quiet)
	if a.InFlight {
		quiet = now.Add(Quiet)
	}
	if quiet.Before(a.CloseFrom) {
		return a.CloseFrom
	}
	return quiet
}

// victims returns agents that free at least need of the group's room when they are closed,
// and no more agents than necessary. It returns none if all of them together free too little.
func (p *planner) victims(g *Group, need int64, demand bool) victims {
	if need <= 0 {
		return victims{}
	}
	var list []*Agent
	for _, a := range g.Agents {
		at := a.closeFrom(demand, p.now)
		if !at.IsZero() && !at.After(p.now) && !p.Close[a] {
			list = append(list, a)
			need -= a.Cost
		}
	}
	if need > 0 {
		return victims{rank: unknown}
	}
	slices.SortFunc(list, func(a, b *Agent) int {
		return cmp.Or(cmp.Compare(a.class(), b.class()), a.since().Compare(b.since()), cmp.Compare(a.ID, b.ID))
	})
	v := victims{rank: afterIdle}
	// need is now zero or negative. From the last choice on, an agent that is not necessary
	// stays open.
	for _, a := range slices.Backward(list) {
		if need+a.Cost <= 0 {
			need += a.Cost
			continue
		}
		v.agents = append(v.agents, a)
		if a.class() > ahead {
			v.rank = afterBusy
		}
	}
	return v
}
