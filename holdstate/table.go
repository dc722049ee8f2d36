// SPDX-License-Identifier: Apache-2.0

package holdstate

// kind tells apart the waiters of Hold from those of Queue.
type kind uint8

const (
	ofHold  kind = iota // it may be held
	ofQueue             // it is not held: without a replica its caller decides again
	either              // in a row: the row is for both kinds
	kindEnd = either
)

// step is what an event does to a waiter.
type step struct {
	to      State
	outcome Outcome // of a waiter that ends; Pending: its caller decides again
	err     error   // why it ended without a slot; with Refuse the caller of apply sets it
	further bool    // the event has no effect if Claim.Next lets the request have further replicas
	frees   bool    // other waiters may proceed, so the target is updated
	missed  bool    // a Drain or Unplace that had no effect in the former state is applied now
}

// row is an event that changes waiters of a kind in a state.
type row struct {
	state State
	event Event
	kind  kind
	step
}

// table is the whole state machine of a waiter. An event without a row changes nothing.
// Neither the hold budget nor a drain ends a granted request.
var table = []row{
	{Held, Up, ofHold, step{to: Released}},
	{Held, Expire, ofHold, step{to: Ended, outcome: OutcomeExpired}},
	{Held, Leave, ofHold, step{to: Ended, outcome: OutcomeDisconnected}},
	{Held, Unplace, ofHold, step{to: Ended, outcome: OutcomeRemoved}},
	{Held, Revoke, ofHold, step{to: Ended, outcome: OutcomeRemoved}},
	{Held, Drain, ofHold, step{to: Ended, outcome: OutcomeDraining}},
	{Held, Fail, ofHold, step{to: Ended, outcome: OutcomeWakeFailed}},

	{Released, Down, ofHold, step{to: Held, missed: true}},
	{Released, Down, ofQueue, step{to: Ended, frees: true}},
	{Released, Reserved, either, step{to: Admitted}},
	{Released, Expire, either, step{to: Ended, outcome: OutcomeReleased, err: ErrGateFull, frees: true}},
	{Released, Refuse, either, step{to: Ended, outcome: OutcomeReleased}},
	{Released, Leave, either, step{to: Ended, outcome: OutcomeDisconnected, frees: true}},
	{Released, Revoke, either, step{to: Ended, outcome: OutcomeRemoved, frees: true}},
	{Released, Drain, either, step{to: Ended, outcome: OutcomeDraining, frees: true}},

	{Admitted, Down, ofHold, step{to: Held, frees: true, missed: true}},
	{Admitted, Down, ofQueue, step{to: Ended, frees: true}},
	{Admitted, Slot, either, step{to: Granted}},
	{Admitted, TimeOut, either, step{to: Ended, outcome: OutcomeReleased, err: ErrTimeout, further: true, frees: true}},
	{Admitted, Refuse, either, step{to: Ended, outcome: OutcomeReleased, frees: true}},
	{Admitted, Leave, either, step{to: Ended, outcome: OutcomeDisconnected, frees: true}},
	{Admitted, Revoke, either, step{to: Ended, outcome: OutcomeRemoved, frees: true}},
	{Admitted, Drain, either, step{to: Ended, outcome: OutcomeDraining, frees: true}},

	{Granted, Back, ofHold, step{to: Held, missed: true}},
	{Granted, Back, ofQueue, step{to: Ended}},
	{Granted, Done, either, step{to: Ended, outcome: OutcomeReleased}},
	{Granted, Leave, either, step{to: Ended, outcome: OutcomeReleased}},
}

// steps is the table by kind, state and event; nil: the event changes nothing.
var steps = func() (all [kindEnd][stateEnd][eventEnd]*step) {
	for i := range table {
		r := &table[i]
		for k := range kindEnd {
			if r.kind == either || r.kind == k {
				all[k][r.state][r.event] = &r.step
			}
		}
	}
	return all
}()
