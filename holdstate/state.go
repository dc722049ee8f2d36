// SPDX-License-Identifier: Apache-2.0

package holdstate

// State is where a waiter stands.
type State uint8

// The states of a waiter.
const (
	Held     State = iota // no replica serves its target
	Released              // a replica serves it, it waits for room in the admission gate
	Admitted              // it has room, it waits for a slot
	Granted               // it has a slot
	Ended                 // it has its outcome
)

// Event is what can happen to a waiter.
type Event uint8

// The events of a waiter.
const (
	Up       Event = iota // the first replica for its target came into routing
	Down                  // the last one left
	HasRoom               // the admission gate let it through
	Slot                  // a slot was taken for it
	Back                  // the engine it was given refused, or died before its head
	Done                  // the engine has answered: it needs no place any more
	Expire                // the hold budget, or the time to park, ran out
	TimeOut               // the wait for a slot took longer than allowed
	Refuse                // it can have no room or no slot, however long it waits
	Leave                 // the client went away
	Unplace               // the map no longer places its target here
	Revoke                // its key is no longer good
	Drain                 // the router shuts down
	Fail                  // the wake was reported failed
	eventEnd              // counts the events
)

// Outcome is how a waiter ended. Its String is the metric's label.
type Outcome uint8

// The outcomes, one of them for every request that was held or refused by a limit.
const (
	Pending         Outcome = iota // not ended yet
	OutcomeReleased                // a replica came in time
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

// String gives the outcome's metric label.
func (o Outcome) String() string { return outcomeNames[o] }

// Outcomes lists all that can be counted, so that every series exists from the start.
func Outcomes() []Outcome {
	all := make([]Outcome, 0, outcomeEnd-1)
	for o := OutcomeReleased; o < outcomeEnd; o++ {
		all = append(all, o)
	}
	return all
}

// step is where an event leads, with the outcome of a waiter that ends there.
type step struct {
	to      State
	outcome Outcome
}

// steps is the whole state machine of one waiter. A granted request is the
// relay's: neither the budget nor a drain ends it.
var steps = map[State]map[Event]step{
	Held: {
		Up:      {to: Released},
		Expire:  {to: Ended, outcome: OutcomeExpired},
		Unplace: {to: Ended, outcome: OutcomeRemoved},
		Revoke:  {to: Ended, outcome: OutcomeRemoved},
		Fail:    {to: Ended, outcome: OutcomeWakeFailed},
		Leave:   {to: Ended, outcome: OutcomeDisconnected},
		Drain:   {to: Ended, outcome: OutcomeDraining},
	},
	Released: {
		Down:    {to: Held},
		HasRoom: {to: Admitted},
		Expire:  {to: Ended, outcome: OutcomeReleased},
		Refuse:  {to: Ended, outcome: OutcomeReleased},
		Leave:   {to: Ended, outcome: OutcomeDisconnected},
		Revoke:  {to: Ended, outcome: OutcomeRemoved},
		Drain:   {to: Ended, outcome: OutcomeDraining},
	},
	Admitted: {
		Down:    {to: Held},
		Slot:    {to: Granted},
		TimeOut: {to: Ended, outcome: OutcomeReleased},
		Refuse:  {to: Ended, outcome: OutcomeReleased},
		Revoke:  {to: Ended, outcome: OutcomeRemoved},
		Leave:   {to: Ended, outcome: OutcomeDisconnected},
		Drain:   {to: Ended, outcome: OutcomeDraining},
	},
	Granted: {
		Back:  {to: Held},
		Done:  {to: Ended, outcome: OutcomeReleased},
		Leave: {to: Ended, outcome: OutcomeReleased},
	},
}

// next looks an event up. One that means nothing in a state leaves it as it is.
func next(s State, e Event) (State, Outcome) {
	if t, ok := steps[s][e]; ok {
		return t.to, t.outcome
	}
	return s, Pending
}
