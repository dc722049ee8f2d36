// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// flight is a request across its passes, from its headers until its log entry. It
// owns the slot of the attempt that Envoy carries.
type flight struct {
	id      string
	arrived time.Time
	stream  string // Envoy's name of the request; empty from a gateway
	envoy   string // the address that Envoy called from
	call    Call   // nil until its first pass has authenticated it
	forward Forward
	clocks  clocks      // of its first pass
	host    string      // the client's, stored when an engine's replaces it; empty: it did not
	to      Destination // set before it has a slot

	mu        sync.Mutex
	rec       Record
	grant     holdstate.Grant // of the attempt that Envoy carries
	sentAt    time.Time       // when that attempt began
	slotFreed bool            // its slot was released before its log entry arrived
	doneAt    time.Time       // when its last pass ended: the router has answered it, or its client left; zero: not yet
	logged    bool            // its log entry has arrived
	ended     bool            // flights.remove was called: nothing more is noted in rec
	routed    bool            // firstSlot was called
	deaths    map[string]int  // by address: how often the engine there died under the request
	passes    int             // through the rehold lane
	seq       uint64          // its place among the waiters; 0: it has not waited
}

// note writes to the request's record, unless the request has ended.
func (fl *flight) note(write func(*Record)) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if !fl.ended {
		write(&fl.rec)
	}
}

// noteRequest records what is known of the request so far, without its body.
func (fl *flight) noteRequest(req *Request) {
	fl.note(func(r *Record) {
		r.Request = *req
		r.Request.body = nil
	})
}

// noteRefusal records that the request ended without an engine's answer.
func (fl *flight) noteRefusal(why *refusal.Refusal) {
	fl.note(func(r *Record) { r.refuse(why) })
}

// carry stores the slot of an attempt that Envoy is going to make. If Envoy has ended the
// request in the meantime, it releases the slot and returns false. All that this process
// writes to the record must be written before, because Envoy's log may end the request at
// once.
func (fl *flight) carry(g holdstate.Grant) (carried bool) {
	fl.mu.Lock()
	carried = !fl.ended && !fl.logged
	if carried {
		fl.grant, fl.sentAt, fl.slotFreed = g, time.Now(), false
		fl.rec.carried(g)
	}
	fl.mu.Unlock()
	if !carried {
		g.Release()
	}
	return carried
}

// keepPlace stores the request's place among the waiters, for a later wait.
func (fl *flight) keepPlace(seq uint64) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.seq = seq
}

// place returns the request's place among the waiters; 0: it has not waited.
func (fl *flight) place() uint64 {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.seq
}

// take removes and returns the slot of an attempt that Envoy has given up; nil: none.
func (fl *flight) take() holdstate.Grant {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	g := fl.grant
	fl.grant = nil
	return g
}

// free releases an attempt's slot before its log entry has arrived. The request keeps the
// grant, because it may not be the one whose log entry is lost.
func (a carriedAttempt) free() (freed bool) {
	a.fl.mu.Lock()
	freed = a.fl.grant == a.grant && !a.fl.slotFreed
	if freed {
		a.fl.slotFreed = true
	}
	a.fl.mu.Unlock()
	if freed {
		a.grant.Release()
	}
	return freed
}

// isCarried reports whether Envoy carries the request.
func (fl *flight) isCarried() bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.grant != nil
}

// isFreed reports whether free has released the slot.
func (fl *flight) isFreed() bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.slotFreed
}

// done reports whether the last pass has ended. The caller holds mu.
func (fl *flight) done() bool { return !fl.doneAt.IsZero() }

// duration returns the time from the request's arrival until the end of its last pass, or
// until now.
func (fl *flight) duration() time.Duration {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.done() {
		return fl.doneAt.Sub(fl.arrived)
	}
	return time.Since(fl.arrived)
}

// firstSlot reports whether this is the request's first slot. Only the first call
// returns true.
func (fl *flight) firstSlot() bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	first := !fl.routed
	fl.routed = true
	return first
}
