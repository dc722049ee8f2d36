// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// minGroupUpTime is the shortest time that an agent of a group stays in routing once it is
// up, whatever its minimum up time, so that the requests that waited for it get slots.
const minGroupUpTime = time.Second

// state is what an agent reported and what it was sent. Its methods depend on nothing else.
// After each change of it registration.reevaluate must be called.
type state struct {
	hello hello

	reported pb.State  // the engine's state by the last Status that counts
	healthy  bool      // its health by that Status
	heard    bool      // a Status has come since the Hello
	upAt     time.Time // since when the engine serves; zero: it does not

	routed   bool      // in routing
	routedAt time.Time // when it last came into routing

	toldToSleep bool   // this router sent Sleep, and no Wake since
	sleepCause  string // of the last Sleep
	closing     bool   // gets no requests, to make room in its group
	leaving     bool   // sent Bye; requests may be in flight
	left        bool   // its stream has ended or is to end

	messages messages
	attempt  attempt
	failures failures
	probe    probe
}

// asleep reports whether, as far as this router can tell, the engine does not run or is
// being stopped, so that only a Wake would bring it up.
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

// sentAway reports whether an agent that has left routing was to leave it: it said Bye, was sent a
// Sleep, makes room in its group, or is a backend that is not checked any more.
func (s *state) sentAway() bool {
	return s.leaving || s.toldToSleep || s.closing || !s.hello.canWake && s.reported == pb.State_STATE_ASLEEP
}

// upOrWaking reports whether the agent serves or is about to.
func (s *state) upOrWaking() bool { return s.routed || s.waking() }

// occupies reports whether the agent takes room of its group, or may: from the Wake to the
// end of its engine. An agent that cannot sleep always does. One that has sent no Status
// yet, or has not acknowledged the last Wake or Sleep, may do so whatever it reported before.
func (s *state) occupies() bool {
	return !s.hello.canWake || s.attempt.open || s.reported != pb.State_STATE_ASLEEP ||
		!s.heard || s.messages.unacknowledged()
}

// vacates reports whether the agent takes room that will be free soon.
func (s *state) vacates() bool {
	return s.occupies() && (s.leaving || s.left || s.hello.canWake && s.asleep())
}

// closeFrom returns the time from which the agent may be closed to make room, zero for
// never. An agent that serves may be closed once it has served for long enough. One that is
// waking may be closed when none of its models is wanted any more, or when no request has
// waited for as long as requests had waited before: clients that give up and retry soon
// find the wake still in progress.
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

// noteServing records a Status that reports the engine up and healthy, and acknowledges the
// messages up to handled.
func (s *state) noteServing(handled uint64, now time.Time) {
	if s.attempt.open || s.upAt.IsZero() {
		s.upAt = now
	}
	s.attempt.open, s.failures.blocked = false, false
	if now.Sub(s.upAt) >= stableTime {
		s.failures.inARow = 0
	}
	s.probe.answered(handled)
}

// messages numbers the messages to an agent. An agent's Status acknowledges all messages up
// to a number.
type messages struct {
	last    uint64    // number of the last message
	command uint64    // number of the last Wake or Sleep; older statuses do not count
	sentAt  time.Time // when the last Wake or Sleep was sent
	handled uint64    // the highest number that the agent has acknowledged
}

// next returns the number of the next message.
func (m *messages) next() uint64 {
	m.last++
	return m.last
}

// nextCommand returns the number of the next message, a Wake or a Sleep sent at now.
func (m *messages) nextCommand(now time.Time) uint64 {
	m.command, m.sentAt = m.next(), now
	return m.command
}

// acknowledge records the number of a Status. It returns the number, and whether the Status
// counts: one that the agent sent before it had the last Wake or Sleep does not.
func (m *messages) acknowledge(number uint64) (handled uint64, counts bool) {
	handled = min(number, m.last) // an agent cannot acknowledge a message that was not sent
	m.handled = max(m.handled, handled)
	return handled, handled >= m.command
}

// unacknowledged reports whether the agent has not yet acknowledged the last Wake or Sleep.
func (m *messages) unacknowledged() bool { return m.handled < m.command }
