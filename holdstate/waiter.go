// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"container/list"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// Request describes a request that is to wait.
type Request struct {
	Target target.Target
	Key    string // the caller's key, by which turns and PerKey are counted; empty: none
	// KeyID and Tenant name the caller for Groups.
	KeyID, Tenant string
	// ClientIDs are the client's own request ids. The first UUID counts.
	ClientIDs [2]string
	Bytes     int64  // the size of the body that is kept in memory while it waits
	Seq       uint64 // its place in the order of arrival, from an earlier wait or from Place; 0: none
	// Retry: a replica gave no answer to the request. QueueDepth does not apply to it.
	Retry bool
	// Counted: OnOutcome was called for an earlier wait of the request. It is not called
	// again.
	Counted bool
	// SiteHold counts the request for the other routers while it counts against this
	// machine's limits; nil: there are none.
	SiteHold SiteHold
	// Claim gets the request its reservation and its slot. It is called under the
	// machine's lock and must not call the machine.
	Claim Claim
	// Reservation is what the gate reserved for the request before Queue, which owns it
	// unless it returns an error; nil: the request waits for one.
	Reservation Reservation
}

// Waiter is a request that waits. Its methods are safe for concurrent use.
type Waiter struct {
	m         *Machine
	request   Request
	kind      kind
	turnKey   string // the key whose turns it shares; empty: the order is by arrival alone
	id        identity
	seq       uint64
	returning bool // it waited, or had a slot, before, here or on another router
	joined    time.Time
	changed   chan struct{}

	// Guarded by the machine's lock.
	state       State
	outcome     Outcome
	reason      string
	err         error
	reservation Reservation // in state Admitted
	grant       Grant
	begun       bool // Begin was called
	bytes       int64
	placed      bool // it counts against the limits and in the demand
	queue       *queue
	place       *list.Element // in queue
	released    time.Time
	admitted    time.Time
	left        time.Time // when it left the queue, with a slot or at its end
}

// Status is a waiter's state at one moment.
type Status struct {
	State   State
	Outcome Outcome
	Reason  string // of a failed wake
	// Err is why a waiter ended without a slot though a replica served its target:
	// ErrGateFull, ErrNoQueue, ErrTimeout, or an error of Claim.Admit.
	Err   error
	Grant Grant // in state Granted
	Seq   uint64
}

func (m *Machine) newWaiter(r Request, k kind, id identity) *Waiter {
	w := &Waiter{
		m: m, request: r, kind: k, turnKey: r.Key, seq: r.Seq, returning: r.Seq != 0,
		id: id, joined: time.Now(), changed: make(chan struct{}, 1),
	}
	if m.o.InOrder {
		w.turnKey = ""
	}
	if !w.returning {
		w.arrive()
	}
	w.addBytes(r.Bytes)
	return w
}

// arrive gives a new waiter its place: the one that another router gave to the request, or the
// next one. By the clock of the other router it may have arrived later than now.
func (w *Waiter) arrive() {
	w.seq = w.m.Place(w.joined)
	if w.m.o.PlaceOf == nil {
		return
	}
	if place := w.m.o.PlaceOf(w.request.Target.Model, uint64(w.id)); place != 0 {
		w.seq, w.returning = min(w.seq, place), true
	}
}

// Changed returns a channel that gets a value when Status may have changed.
func (w *Waiter) Changed() <-chan struct{} { return w.changed }

// Begin records that the client is sent the beginning of an answer, so that Drain does not end
// the wait. It returns false if the wait has ended already: the caller must answer with that.
func (w *Waiter) Begin() (begun bool) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.state == Ended {
		return false
	}
	w.begun = true
	return true
}

// Waited returns how long the waiter was held, and how long it then waited for a reservation
// and a slot. Both stop when it gets the slot, and when it ends.
func (w *Waiter) Waited() (held, queued time.Duration) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	now := w.left
	if now.IsZero() {
		now = time.Now()
	}
	if w.released.IsZero() {
		return now.Sub(w.joined), 0
	}
	return w.released.Sub(w.joined), now.Sub(w.released)
}

// Status returns the waiter's current status.
func (w *Waiter) Status() Status {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return Status{State: w.state, Outcome: w.outcome, Reason: w.reason, Err: w.err, Grant: w.grant, Seq: w.seq}
}

// Report applies an event that the caller observed: Expire, TimeOut, Leave, Back or Done. It
// returns the status after the event. The caller must release a grant in that status. A
// waiter that is still Admitted after TimeOut may have further replicas and waits on.
func (w *Waiter) Report(e Event) Status {
	w.m.change(func() { w.apply(e) })
	return w.Status()
}
