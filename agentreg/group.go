// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// DefaultGroupGrace is how long a router that has just started wakes no agent of a
// group: agents that are awake may still be connecting to it again.
const DefaultGroupGrace = 2 * time.Second

// orphanTime is how long the engine of an agent that was killed may outlive it:
// internal/proc ends what is left of it within five seconds.
const orphanTime = 6 * time.Second

// shortestTurn is how long an agent that has come up is open at least, whatever
// its minimum up time, so that those who waited for it get their slots.
const shortestTurn = time.Second

// groupSpec is what an agent says of its group; without a name it has none.
type groupSpec struct {
	name       string
	room, cost int64
}

// group is agents that cannot all be awake at once.
type group struct {
	name    string
	room    int64
	members map[*registration]struct{}
	timer   *time.Timer // arbitrates the group again
}

// conflict says what is wrong with the group of a Hello beside those of the
// agents that are there, nil for nothing. An agent of the same id leaves for it.
func (r *Registry) conflict(h hello) *rejected {
	g := r.groups[h.group.name]
	if g == nil || g.room == h.group.room {
		return nil
	}
	for rec := range g.members {
		if rec.hello.info.ID != h.info.ID && !rec.released {
			return &rejected{code: protocol.CodeInvalidHello, message: fmt.Sprintf(
				"group.room: is %d, but %d for agent %q of group %q: all agents of a group must say the same (--group-max-awake, --group-memory)",
				h.group.room, g.room, rec.hello.info.ID, g.name)}
		}
	}
	return nil
}

// enterGroup makes rec a member of its group, if it has one.
func (r *Registry) enterGroup(rec *registration) {
	spec := rec.hello.group
	if spec.name == "" {
		return
	}
	g := r.groups[spec.name]
	if g == nil {
		g = &group{name: spec.name, members: map[*registration]struct{}{}}
		g.timer = time.AfterFunc(time.Hour, func() {
			r.update(func() { r.arbitrate(r.areaOfGroup(g)) })
		})
		g.timer.Stop()
		r.groups[spec.name] = g
	}
	g.room = spec.room // all say the same, but those that are gone
	for old := range g.members {
		switch {
		case !old.released:
		case old.followedBy(rec):
			old.timer.Stop()
			delete(g.members, old)
		case old.hello.info.ID == rec.hello.info.ID:
			old.timer.Reset(max(time.Until(r.orphanEnds(old)), 0))
		}
	}
	g.members[rec] = struct{}{}
	rec.group = g
}

// orphanEnds is when the room of an agent that is gone is free again although nobody
// said that its engine has ended: after the liveness time, or sooner if the agent was
// killed and is back. An agent that was superseded is still ending its engine.
func (r *Registry) orphanEnds(rec *registration) time.Time {
	if !rec.superseded && r.agents[rec.hello.info.ID] != nil {
		return rec.leftAt.Add(min(orphanTime, r.opts.Liveness))
	}
	return rec.leftAt.Add(r.opts.Liveness)
}

// leaveGroup takes rec out of its group at once when its engine does not run, or
// when it said Bye and the engine is not its to stop. Else it may come back, or
// still be stopping its engine: it keeps its room for a while.
func (r *Registry) leaveGroup(rec *registration) {
	g := rec.group
	if g == nil {
		return
	}
	if rec.occupies() && (rec.hello.canWake || !rec.leaving) {
		rec.leftAt = time.Now()
		rec.timer = time.AfterFunc(r.opts.Liveness, func() {
			r.update(func() {
				g.drop(r, rec)
				r.arbitrate(r.areaOf(rec))
			})
		})
		return
	}
	g.drop(r, rec)
}

// followedBy says whether rec proves that the engine of an agent that is gone is rec's
// now, or has ended: it is the same agent, or came after the end of one that took leave.
func (a *registration) followedBy(rec *registration) bool {
	return a.hello.info.Instance == rec.hello.info.Instance || a.leaving && a.hello.info.ID == rec.hello.info.ID
}

func (g *group) drop(r *Registry, rec *registration) {
	delete(g.members, rec)
	if len(g.members) == 0 && r.groups[g.name] == g {
		g.timer.Stop()
		delete(r.groups, g.name)
	}
}

// occupies says whether the agent takes of its group's room: from the Wake to
// the end of its engine. One that cannot sleep always does, and one that has
// only just connected or not taken in the last word may, whatever it said before.
func (a *registration) occupies() bool {
	return !a.hello.canWake || a.wakeSent || a.reported != pb.State_STATE_ASLEEP ||
		a.status == nil || a.handled < a.command
}

// leaves says whether the room that the agent takes will be free soon.
func (a *registration) leaves() bool {
	return a.occupies() && (a.leaving || a.released || a.hello.canWake && a.asleep())
}

// closeFrom is from when on the agent may be asked to make room: once it has served
// long enough. One that is still on its way to serve may be asked when nobody wishes for
// it any more, or nobody has waited for it for as long as somebody had: clients that
// give up and try again find their wake going on. Zero: never.
func (r *Registry) closeFrom(a *registration) time.Time {
	switch {
	case !a.hello.canWake || a.slept || a.leaving || a.released:
		return time.Time{}
	case a.waking():
		switch {
		case r.demandAny(a):
			return time.Time{}
		case !r.wantedAny(a):
			return r.epoch
		}
		return a.soughtAt.Add(a.soughtAt.Sub(a.wokenAt))
	case a.reported == pb.State_STATE_SERVING:
		return a.turnEnds()
	}
	return time.Time{}
}

// turnEnds is from when on the agent may be asked to make room.
func (a *registration) turnEnds() time.Time { return a.upAt.Add(max(a.hello.minUp, shortestTurn)) }

// crowded says why the agent can never be woken: what agents that cannot sleep
// leave of its group's room is too little. Empty: it can.
func (a *registration) crowded() string {
	g := a.group
	if g == nil {
		return ""
	}
	left := g.room
	var fixed []string
	for rec := range g.members {
		if !rec.hello.canWake && !rec.leaving && !rec.released {
			left -= rec.hello.group.cost
			fixed = append(fixed, rec.hello.info.ID)
		}
	}
	if left >= a.hello.group.cost {
		return ""
	}
	slices.Sort(fixed)
	return fmt.Sprintf("the room of group %s is taken by agents that cannot be stopped (no --exec): %s",
		g.name, strings.Join(fixed, ", "))
}

// evict takes rec out of routing, and says Sleep when nothing is in flight.
func (r *Registry) evict(rec *registration) {
	if !rec.closing {
		rec.closing = true
		r.log.Info().Str("agent", rec.hello.info.ID).Str("group", rec.group.name).
			Int64("in_flight", rec.replica.gate.inFlight()).Msg("making room")
		r.route(rec)
	}
	if rec.replica.gate.inFlight() == 0 {
		r.saySleep(rec, causeRoom)
		r.arm(rec)
	}
}
