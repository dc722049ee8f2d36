// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// DefaultGroupGrace is how long a router that has just started wakes no agent of a
// group: agents that are awake may still be connecting to it again.
const DefaultGroupGrace = 2 * time.Second

// orphanTime is how long the engine of an agent that was killed may outlive it:
// internal/proc ends what is left of it within five seconds.
const orphanTime = 6 * time.Second

// group is agents that share room, so that not all of them can be awake at once.
type group struct {
	name    string
	room    int64
	members map[*registration]struct{} // agents that left stay while their engine may run
	timer   *time.Timer                // arbitrates the group again
}

// groups holds the groups that have members, by name.
type groups map[string]*group

// conflict is what is wrong with the group of a Hello beside those of registered agents,
// nil if nothing is. An agent with the same id does not count: this one replaces it.
func (gs groups) conflict(h hello) *rejected {
	g := gs[h.group.name]
	if g == nil || g.room == h.group.room {
		return nil
	}
	for a := range g.members {
		if a.hello.info.ID != h.info.ID && !a.left {
			return &rejected{code: protocol.CodeInvalidHello, message: fmt.Sprintf(
				"group.room: is %d, but %d for agent %q of group %q: all agents of a group must say the same (--group-max-awake, --group-memory)",
				h.group.room, g.room, a.hello.info.ID, g.name)}
		}
	}
	return nil
}

// group returns the group of a name, a new one if need be.
func (r *Registry) group(name string) *group {
	g := r.groups[name]
	if g == nil {
		g = &group{name: name, members: map[*registration]struct{}{}}
		g.timer = time.AfterFunc(time.Hour, func() {
			r.update(func() { r.scopeOfGroup(g).arbitrate() })
		})
		g.timer.Stop()
		r.groups[name] = g
	}
	return g
}

// add makes an agent a member. It ends the wait for the engine of an earlier agent with
// its id, or shortens it.
func (g *group) add(a *registration) {
	g.room = a.hello.group.room // the same for all, but those that left
	for old := range g.members {
		switch {
		case !old.left:
		case old.followedBy(a):
			old.timer.Stop()
			delete(g.members, old)
		case old.hello.info.ID == a.hello.info.ID:
			old.timer.Reset(max(time.Until(old.engineEnds()), 0))
		}
	}
	g.members[a] = struct{}{}
	a.group = g
}

// leave removes an agent that left: at once if its engine does not run, or if it sent Bye
// and does not stop its engine. Otherwise it may come back, or still be stopping its
// engine: it keeps its room for the liveness time.
func (g *group) leave(a *registration) {
	if !a.occupies() || a.leaving && !a.hello.canWake {
		g.drop(a)
		return
	}
	a.leftAt = time.Now()
	a.timer = time.AfterFunc(a.registry.opts.Liveness, func() {
		a.registry.update(func() {
			g.drop(a)
			a.scope().arbitrate()
		})
	})
}

func (g *group) drop(a *registration) {
	delete(g.members, a)
	if gs := a.registry.groups; len(g.members) == 0 && gs[g.name] == g {
		g.timer.Stop()
		delete(gs, g.name)
	}
}

// shortage is why no agent with such a cost can ever be woken: what agents that cannot
// sleep leave of the room is too little. Empty: it can.
func (g *group) shortage(cost int64) string {
	left := g.room
	var fixed []string
	for a := range g.members {
		if !a.hello.canWake && !a.leaving && !a.left {
			left -= a.hello.group.cost
			fixed = append(fixed, a.hello.info.ID)
		}
	}
	if left >= cost {
		return ""
	}
	slices.Sort(fixed)
	return fmt.Sprintf("the room of group %s is taken by agents that cannot be stopped (no --exec): %s",
		g.name, strings.Join(fixed, ", "))
}

// roomShortage is the shortage of the agent's group, if it has one.
func (a *registration) roomShortage() string {
	if a.group == nil {
		return ""
	}
	return a.group.shortage(a.hello.group.cost)
}

// followedBy reports whether next proves that the engine of an agent that left is now
// that of next, or has ended: it is the same agent, or this one sent Bye.
func (a *registration) followedBy(next *registration) bool {
	return a.hello.info.Instance == next.hello.info.Instance || a.leaving && a.hello.info.ID == next.hello.info.ID
}

// engineEnds is when the engine of an agent that left is taken to have ended without a
// report of it: after the liveness time, or sooner if the agent was killed and is back. An agent
// that was superseded is still stopping its engine.
func (a *registration) engineEnds() time.Time {
	liveness := a.registry.opts.Liveness
	if !a.superseded && a.registry.agents[a.hello.info.ID] != nil {
		return a.leftAt.Add(min(orphanTime, liveness))
	}
	return a.leftAt.Add(liveness)
}
