// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// The causes of a Sleep, as they are logged.
const (
	causeIdle = "idle"
	causeRoom = "room for another model"
)

// sleepIfIdle sends a Sleep, unless a slot is taken.
func (a *registration) sleepIfIdle() {
	if a.replica.gate.closeIdle() {
		a.sleep(causeIdle)
	}
}

// makeRoom takes the agent, a victim, out of routing, and sends it a Sleep once it has no
// requests in flight.
func (a *registration) makeRoom() {
	if !a.closing {
		a.closing = true
		a.log.Info().Str("group", a.group.name).Int64("in_flight", a.replica.gate.inFlight()).Msg("making room")
		a.updateRouting()
	}
	if a.replica.gate.inFlight() == 0 {
		a.sleep(causeRoom)
		a.setTimer()
	}
}

// reopen brings an agent that no longer has to make room back into routing.
func (a *registration) reopen() {
	a.closing = false
	a.updateRouting()
	a.setTimer()
}

// sleep sends a Sleep. The agent's gate must be closed and no requests in flight.
func (a *registration) sleep(cause string) {
	if !a.upAt.IsZero() {
		a.failures.inARow = 0
	}
	a.toldToSleep, a.closing, a.sleepCause = true, false, cause
	a.attempt.open = false
	a.updateRouting()
	a.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_Sleep{Sleep: &pb.Sleep{
		Seq: a.messages.nextCommand(time.Now()),
	}}})
}
