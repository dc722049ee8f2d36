// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// The causes of a Sleep, as the log has them.
const (
	causeIdle = "idle"
	causeRoom = "room for another model"
)

// sleepIfIdle sends a Sleep, unless a slot was taken in the meantime.
func (a *registration) sleepIfIdle() {
	if a.replica.gate.closeIdle() {
		a.sleep(causeIdle)
	}
}

// makeRoom takes a victim out of routing, and sends a Sleep once nothing is in flight.
func (a *registration) makeRoom() {
	if !a.closing {
		a.closing = true
		a.log.Info().Str("group", a.group.name).Int64("in_flight", a.replica.gate.inFlight()).Msg("making room")
		a.route()
	}
	if a.replica.gate.inFlight() == 0 {
		a.sleep(causeRoom)
		a.setTimer()
	}
}

// reopen lets an agent into routing again that need not make room any more.
func (a *registration) reopen() {
	a.closing = false
	a.route()
	a.setTimer()
}

// sleep sends a Sleep to an agent whose gate is closed, with nothing in flight.
func (a *registration) sleep(cause string) {
	if !a.upAt.IsZero() {
		a.failures.inARow = 0
	}
	a.toldToSleep, a.closing, a.sleepCause = true, false, cause
	a.attempt.open = false
	a.route()
	a.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_Sleep{Sleep: &pb.Sleep{
		Seq: a.messages.nextCommand(time.Now()),
	}}})
}
