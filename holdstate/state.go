// SPDX-License-Identifier: Apache-2.0

package holdstate

// State is the state of a waiter.
type State uint8

// The states of a waiter.
const (
	Held     State = iota // no replica serves its target
	Released              // a replica serves its target, it waits for a reservation
	Admitted              // it has a reservation, it waits for a slot
	Granted               // it has a slot
	Ended                 // it no longer waits
	stateEnd              // counts the states
)

// Event is what can happen to a waiter.
type Event uint8

// The events of a waiter.
const (
	Up       Event = iota // the first replica for its target entered routing
	Down                  // the last replica for its target left routing
	Reserved              // the admission gate gave it a reservation
	Slot                  // a slot was taken for it
	Back                  // the engine refused the request, or died before it answered
	Done                  // the engine has answered, or Envoy carries the request from here
	Expire                // the hold budget, or the time to wait for a reservation, ran out
	TimeOut               // the time to wait for a slot ran out
	Refuse                // it can get no reservation or no slot, however long it waits
	Leave                 // the client went away
	Unplace               // the map no longer places its target here
	Revoke                // its key is no longer valid
	Drain                 // the router shuts down
	Fail                  // the wake of its model failed
	eventEnd              // counts the events
)

// Outcome is how a wait ended. Its String is the label of the metric.
type Outcome uint8

// The outcomes. Every request that was held, or refused by a limit of holds, has one.
const (
	Pending         Outcome = iota // it waits, or its caller decides again
	OutcomeReleased                // a replica was up in time
	OutcomeExpired                 // the hold budget ran out first
	OutcomeFull                    // a hold limit refused it
	OutcomeDisconnected
	OutcomeRemoved
	OutcomeDraining
	OutcomeWakeFailed
	outcomeEnd // counts the outcomes
)

var outcomeNames = [...]string{
	Pending: "pending", OutcomeReleased: "released", OutcomeExpired: "expired", OutcomeFull: "full",
	OutcomeDisconnected: "disconnected", OutcomeRemoved: "removed", OutcomeDraining: "draining", OutcomeWakeFailed: "wake_failed",
}

// String returns the outcome's metric label.
func (o Outcome) String() string { return outcomeNames[o] }

// Outcomes returns all outcomes that are counted, so that every series exists from the start.
func Outcomes() []Outcome {
	all := make([]Outcome, 0, outcomeEnd-1)
	for o := OutcomeReleased; o < outcomeEnd; o++ {
		all = append(all, o)
	}
	return all
}
