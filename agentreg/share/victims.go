// SPDX-License-Identifier: Apache-2.0

package share

import (
	"cmp"
	"slices"
	"time"
)

// victims are the agents to be closed for another one.
type victims struct {
	agents []*Agent
	rank   rank
}

// class says how little an agent would be missed, the least first.
type class uint8

const (
	idle    class = iota // nobody uses it, waits for it or wishes for it
	wished               // nobody uses it or waits for it
	closing              // its last requests are running
	busy
)

func (a *Agent) class() class {
	switch {
	case !a.InFlight && !a.Demand && !a.Wanted:
		return idle
	case !a.InFlight && !a.Demand:
		return wished
	case a.Closing:
		return closing
	}
	return busy
}

// since is when the agent had its last request, or since when it is up. Of agents of
// one class, the one with the earliest goes first.
func (a *Agent) since() time.Time {
	if a.class() <= wished {
		return a.IdleSince
	}
	return a.UpSince
}

// closeFrom is from when on the agent may be closed for a model that requests wait
// for, or that is only wished for; zero: never. With requests in flight it is the
// earliest time that could be so.
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

// victims finds the agents to close so that the group has so much room more, and
// none that need not be closed. It finds none when all together are too few.
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
	for _, a := range slices.Backward(list) { // who should go least comes first
		if need+a.Cost <= 0 {
			need += a.Cost
			continue
		}
		v.agents = append(v.agents, a)
		if a.class() > wished {
			v.rank = afterBusy
		}
	}
	return v
}
