// SPDX-License-Identifier: Apache-2.0

package holdstate

import "github.com/holdgate/holdgate/internal/target"

// Replica identifies an engine in routing.
type Replica struct {
	ID      string // of its agent
	Engine  string // the kind of engine
	Region  string
	Address string // ip:port
}

// Grant is a slot on a replica, taken for one request.
type Grant interface {
	// Replica returns the replica that the slot is on.
	Replica() Replica
	// Failed takes the replica out of routing until it reports itself healthy. died means
	// that it had taken the request, or answered that it does not take it: the request gets
	// a slot on another replica then, or on this one after a pause.
	Failed(reason string, died bool)
	// CameBack takes the replica out of routing for good: the request came back to this
	// router, so the replica's address is the router's own.
	CameBack()
	// Release releases the slot and the reservation. Calls after the first do nothing.
	Release()
}

// Reservation is what the admission gate reserved for one request.
type Reservation interface {
	// Release releases it. Calls after the first do nothing.
	Release()
}

// TakeResult is the result of an attempt to take a slot.
type TakeResult uint8

// The results.
const (
	Taken TakeResult = iota
	// Unfit: no slot is free that the request may have. Another request may get one.
	Unfit
	// Full: no slot is free for any request.
	Full
	// Later: the request is not sent to a replica that died under it before its pause is
	// over. Update is called then.
	Later
)

// Slots reports which targets have replicas.
type Slots interface {
	// Serving reports whether a replica for t is in routing.
	Serving(t target.Target) bool
}

// Claim gets one request a reservation and a slot.
type Claim interface {
	// Admit returns a reservation of the admission gate, or nil when the request does not
	// fit at this moment. An error means that it will never fit. With behind, others that
	// came before do not fit yet: nothing is reserved, and only the error counts.
	Admit(behind bool) (Reservation, error)
	// Take takes a slot. The grant owns the reservation.
	Take(r Reservation) (Grant, TakeResult)
	// Next opens further replicas to the request, and reports whether there are any.
	Next() bool
}
