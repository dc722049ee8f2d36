// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// flight is a request across its passes, from its headers until its record. It owns the
// slot of the attempt that Envoy carries.
type flight struct {
	id      string
	arrived time.Time
	stream  string // Envoy's name of the request; empty in a foreign Envoy
	envoy   string // the address that Envoy called from
	call    Call   // nil until its caller was found, in its first pass
	forward Forward
	clocks  clocks // of its first pass
	host    string // the client's, once an engine's took its place

	mu     sync.Mutex
	rec    Record
	grant  holdstate.Grant // of the attempt that Envoy carries
	sentAt time.Time       // when that attempt began
	freed  bool            // its slot was given back before its record came
	done   bool            // the router has answered it, or its client left: no pass is left
	doneAt time.Time       // since when
	logged bool            // Envoy's record has come
	ended  bool            // its record was reported
	routed bool
	deaths map[string]int // by address: engines that had taken the request and died
	passes int            // through the rehold lane
	seq    uint64         // its place among the waiters
}

// note writes into the request's record, unless it was reported.
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

// carry hands a slot to the attempt that Envoy makes. When Envoy has ended the request in
// the meantime the slot is given back, and carry returns false. What is on record must be
// complete before: Envoy's log may end the request at once.
func (fl *flight) carry(g holdstate.Grant) (carried bool) {
	fl.mu.Lock()
	carried = !fl.ended && !fl.logged
	if carried {
		fl.grant, fl.sentAt, fl.freed = g, time.Now(), false
		fl.rec.carried(g)
	}
	fl.mu.Unlock()
	if !carried {
		g.Release()
	}
	return carried
}

// keepPlace remembers the request's place among the waiters, for a later wait.
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

// take takes the slot of an attempt that Envoy has given up; nil: there is none.
func (fl *flight) take() holdstate.Grant {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	g := fl.grant
	fl.grant = nil
	return g
}

// free gives an attempt's slot back before its record has come. The request keeps the
// grant, as it may not be the one whose record is lost.
func (a attempt) free() (freed bool) {
	a.fl.mu.Lock()
	freed = a.fl.grant == a.grant && !a.fl.freed
	if freed {
		a.fl.freed = true
	}
	a.fl.mu.Unlock()
	if freed {
		a.grant.Release()
	}
	return freed
}

// isFreed reports whether the slot was given back before the record has come.
func (fl *flight) isFreed() bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.freed
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
