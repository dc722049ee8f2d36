// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// minGroupUpTime is how long an agent of a group gets requests at least once it is up,
// whatever its minimum up time, so that those who waited for it get their slots.
const minGroupUpTime = time.Second

// state is what decides about one agent: what it reported and what it was sent. Its
// methods depend on nothing else. registration.reevaluate follows every change of it.
type state struct {
	hello hello

	reported pb.State  // the last state of the engine that counts
	healthy  bool      // the last health that counts
	heard    bool      // a Status has come since the Hello
	upAt     time.Time // since when the engine serves; zero: it does not

	routed   bool      // in routing
	routedAt time.Time // when it last came into routing

	toldToSleep bool   // this router sent Sleep, and no Wake since
	sleepCause  string // of the last Sleep
	closing     bool   // gets no requests, so that it makes room in its group
	leaving     bool   // sent Bye; requests may be in flight
	left        bool   // its stream has ended or is to end

	messages messages
	attempt  attempt
	failures failures
	probe    probe
}

// asleep reports whether, from this router's view, a Wake is what the agent needs.
func (s *state) asleep() bool {
	return !s.attempt.open && (s.toldToSleep || s.reported == pb.State_STATE_ASLEEP)
}

// waking reports whether the agent is about to serve.
func (s *state) waking() bool {
	return s.attempt.open || !s.toldToSleep && s.reported == pb.State_STATE_WAKING
}

// wakeable reports whether a Wake may be sent to the agent.
func (s *state) wakeable() bool {
	return s.hello.canWake && s.asleep() && !s.failures.blocked
}

// routable reports whether requests may be sent to the agent.
func (s *state) routable() bool {
	return s.reported == pb.State_STATE_SERVING && s.healthy &&
		!s.toldToSleep && !s.attempt.open && !s.probe.failed && !s.leaving && !s.left && !s.closing
}

// upOrWaking reports whether the agent serves or is about to.
func (s *state) upOrWaking() bool { return s.routed || s.waking() }

// occupies reports whether the agent takes of its group's room: from the Wake to
// the end of its engine. One that cannot sleep always does, and one that has just
// connected or has not acknowledged the last command may, whatever it reported before.
func (s *state) occupies() bool {
	return !s.hello.canWake || s.attempt.open || s.reported != pb.State_STATE_ASLEEP ||
		!s.heard || s.messages.unacknowledged()
}

// vacates reports whether the room that the agent takes will be free soon.
func (s *state) vacates() bool {
	return s.occupies() && (s.leaving || s.left || s.hello.canWake && s.asleep())
}

// closeFrom is from when on the agent may be closed to make room: once it has served
// long enough. One that is waking may be closed when none of its models is wanted any
// more, or no request has waited for it for as long as some did before: clients that
// give up and try again find their wake going on. Zero: never.
func (s *state) closeFrom(demand, wanted bool) time.Time {
	switch {
	case !s.hello.canWake || s.toldToSleep || s.leaving || s.left:
		return time.Time{}
	case s.waking():
		switch {
		case demand:
			return time.Time{}
		case !wanted:
			return s.attempt.began
		}
		return s.attempt.demandAt.Add(s.attempt.demandAt.Sub(s.attempt.began))
	case s.reported == pb.State_STATE_SERVING:
		return s.upAt.Add(max(s.hello.minUp, minGroupUpTime))
	}
	return time.Time{}
}

// serves notes a Status by which the engine is up and healthy, and that takes the
// messages up to handled into account.
func (s *state) serves(handled uint64, now time.Time) {
	if s.attempt.open || s.upAt.IsZero() {
		s.upAt = now
	}
	s.attempt.open, s.failures.blocked = false, false
	if now.Sub(s.upAt) >= stableTime {
		s.failures.inARow = 0
	}
	s.probe.answered(handled)
}

// messages counts the numbered messages to an agent. An agent's Status has the
// highest number that it takes into account.
type messages struct {
	last    uint64    // number of the last message
	command uint64    // number of the last Wake or Sleep; older statuses do not count
	sentAt  time.Time // when that was sent
	handled uint64    // the highest number that the agent has acknowledged
}

// next returns the number of a message that is sent now.
func (m *messages) next() uint64 {
	m.last++
	return m.last
}

// nextCommand is next for a Wake or a Sleep.
func (m *messages) nextCommand(now time.Time) uint64 {
	m.command, m.sentAt = m.next(), now
	return m.command
}

// acknowledge notes the number of a Status. It returns the number, and whether the Status
// counts: one that the agent sent before it received the last Wake or Sleep does not.
func (m *messages) acknowledge(number uint64) (handled uint64, counts bool) {
	handled = min(number, m.last) // no agent has received what was not sent
	m.handled = max(m.handled, handled)
	return handled, handled >= m.command
}

// unacknowledged reports whether the agent has not yet acknowledged the last Wake or Sleep.
func (m *messages) unacknowledged() bool { return m.handled < m.command }
