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
	// that it failed with the request, or answered that it did not take it: the request is
	// then sent to another replica, or to this one only after a pause.
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
	// Unfit: slots are free, but none that this request may have.
	Unfit
	// Full: no slot is free for any request.
	Full
	// Later: the request may not have a slot now, because replicas that died under it are
	// left out during a pause. Update is called when a pause ends.
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
	// fit now. An error means that it will never fit. behind means that an earlier request
	// does not fit yet: then it returns nil unless there is an error, or the request is a
	// retry.
	Admit(behind bool) (Reservation, error)
	// Take takes a slot. The grant owns the reservation.
	Take(r Reservation) (Grant, TakeResult)
	// Next lets the request have further replicas, and reports whether there were any.
	Next() bool
}

// SiteHold counts one held request among those of all routers of the site. Its methods are
// called under the machine's lock and must not call the machine. Each may be called again.
type SiteHold interface {
	// Join counts the request, unless it is counted.
	Join()
	// Leave stops counting it.
	Leave()
}
