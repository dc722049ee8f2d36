// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// DefaultGroupGrace is how long a router wakes no agent of a group after its start: agents
// that are already awake may not have reconnected yet.
const DefaultGroupGrace = 2 * time.Second

// orphanTime is how long an engine may outlive its agent when the agent is killed:
// internal/proc ends the remaining processes within five seconds.
const orphanTime = 6 * time.Second

// group is a set of agents that share room, so that not all of them can be awake at once.
type group struct {
	name    string
	room    int64
	members map[*registration]struct{} // with agents that left, while their engine may run
	timer   *time.Timer                // arbitrates the group again
}

// groups holds the groups that have members, by name.
type groups map[string]*group

// conflict returns an error if a registered agent of the same group has another room than
// the Hello. An agent with the id of the Hello is ignored, since it is about to be replaced.
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

// getOrAddGroup returns the group with this name, and adds it if there is none.
func (r *Registry) getOrAddGroup(name string) *group {
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

// add adds an agent to the group. The engine of an earlier agent with the same id no longer
// takes room, or takes it for a shorter time.
func (g *group) add(a *registration) {
	g.room = a.hello.group.room // only agents that left may have had another
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

// memberLeft removes an agent whose stream has ended. It does so at once if the engine does not
// run, or if the agent sent Bye and does not stop its engine. Otherwise the agent may come
// back, or still be stopping its engine: it keeps its room for the liveness time.
func (g *group) memberLeft(a *registration) {
	if !a.occupies() || a.leaving && !a.hello.canWake {
		g.remove(a)
		return
	}
	a.leftAt = time.Now()
	a.timer = time.AfterFunc(a.registry.opts.Liveness, func() {
		a.registry.update(func() {
			g.remove(a)
			a.scope().arbitrate()
		})
	})
}

func (g *group) remove(a *registration) {
	delete(g.members, a)
	if gs := a.registry.groups; len(g.members) == 0 && gs[g.name] == g {
		g.timer.Stop()
		delete(gs, g.name)
	}
}

// shortage returns why no agent of this cost can ever be woken: agents that cannot be put
// to sleep take too much of the room. It returns "" if the agent can be woken.
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

// roomShortage returns why the agent's group never has room for it, "" if it can have.
func (a *registration) roomShortage() string {
	if a.group == nil {
		return ""
	}
	return a.group.shortage(a.hello.group.cost)
}

// followedBy reports whether next shows that the engine of a, which left, is now the engine
// of next or has ended: both are the same instance, or a sent Bye and next has its id.
func (a *registration) followedBy(next *registration) bool {
	return a.hello.info.Instance == next.hello.info.Instance || a.leaving && a.hello.info.ID == next.hello.info.ID
}

// engineEnds returns when the engine of an agent that left is assumed to have ended: after
// the liveness time, or sooner if the agent was killed and another instance has registered.
// An agent that was superseded was not killed, and may still be stopping its engine.
func (a *registration) engineEnds() time.Time {
	liveness := a.registry.opts.Liveness
	if !a.superseded && a.registry.agents[a.hello.info.ID] != nil {
		return a.leftAt.Add(min(orphanTime, liveness))
	}
	return a.leftAt.Add(liveness)
}
