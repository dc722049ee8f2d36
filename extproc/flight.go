// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
)

// flight is a request between its headers and its end, across the passes that the
// rehold lane makes of it.
type flight struct {
	id      string
	arrived time.Time
	stream  string // Envoy's own name of the request, empty in somebody else's Envoy
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
	done   bool            // we have answered it, or its client left: our part is over
	logged bool            // Envoy's record has come
	ended  bool            // both
	routed bool
	deaths map[string]int // by address: engines that had taken the request and died
	passes int            // through the rehold lane
	seq    uint64         // its place among the waiters
}

// flights is every request that has not ended, by request id, which is ours to
// choose, and by the name that Envoy gave it, which no client can choose.
type flights struct {
	mu       sync.Mutex
	by       map[string]*flight
	byStream map[string]*flight
	early    earlyRecords
	left     [256]string // ids of the last requests that Envoy carried and whose clients left
	nextLeft int
}

// start adds a request. An id that is no UUID, or in flight already, is replaced.
func (f *flights) start(id []byte, stream, envoy string) *flight {
	fl := &flight{arrived: time.Now(), stream: stream, envoy: envoy}
	if len(id) == 36 {
		if _, err := uuid.ParseBytes(id); err == nil {
			fl.id = string(id)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by, f.byStream = map[string]*flight{}, map[string]*flight{}
	}
	if f.by[fl.id] != nil || fl.id == "" {
		fl.id = uuid.NewString()
	}
	if stream != "" {
		f.byStream[stream] = fl
		if entry, ended := f.early.take(stream); ended {
			fl.logged = true
			fl.rec.logged(&entry)
		}
	}
	f.by[fl.id] = fl
	return fl
}

// of returns the flight that an access-log entry belongs to, or nil. An entry of
// somebody else's Envoy has only the request id. A request that did not come to us may
// have the same id, as clients choose it, so only an entry of one that Envoy carried counts.
func (f *flights) of(e *wire.LogEntry) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.byStream[e.StreamID]; fl != nil {
		return fl
	}
	if fl := f.by[e.RequestID]; fl != nil && fl.stream == "" && e.Native {
		return fl
	}
	f.early.put(e)
	return nil
}

// sentTo looks up a request in flight by the name that Envoy gave it. It is found only
// when it was sent to a replica, and g is nil when it was sent to several.
func (f *flights) sentTo(stream string) (g holdstate.Grant, model string, found bool) {
	f.mu.Lock()
	fl := f.byStream[stream]
	f.mu.Unlock()
	if fl == nil || stream == "" {
		return nil, "", false
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if len(fl.deaths) == 0 {
		g = fl.rec.Grant
	}
	return g, fl.rec.Request.Model, fl.rec.Grant != nil
}

// end removes a request, gives its slot back and returns its record. ok is false when
// the request had ended before.
func (f *flights) end(fl *flight) (rec *Record, ok bool) {
	f.mu.Lock()
	if f.by[fl.id] == fl {
		delete(f.by, fl.id)
		delete(f.byStream, fl.stream)
	}
	f.mu.Unlock()
	fl.mu.Lock()
	grant, ended := fl.grant, fl.ended
	fl.grant, fl.ended = nil, true
	fl.mu.Unlock()
	if grant != nil {
		grant.Release()
	}
	return &fl.rec, !ended
}

// carried are the requests that the Envoy at an address carries and that began
// before the time.
func (f *flights) carried(envoy string, before time.Time) []*flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	var old []*flight
	for _, fl := range f.by {
		fl.mu.Lock()
		if fl.grant != nil && fl.envoy == envoy && fl.arrived.Before(before) {
			old = append(old, fl)
		}
		fl.mu.Unlock()
	}
	return old
}

// attempt is an attempt that Envoy carries.
type attempt struct {
	fl    *flight
	grant holdstate.Grant
	at    time.Time
	freed bool
}

// begunBefore are the requests of some Envoys that are not over and began before
// the time: how many of them have a stream here, and those that Envoy carries.
func (f *flights) begunBefore(t time.Time, of func(envoy string) bool) (ours int, carried []attempt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.by {
		fl.mu.Lock()
		switch {
		case fl.done || !of(fl.envoy):
		case fl.grant == nil && fl.arrived.Before(t):
			ours++
		case fl.grant != nil && fl.sentAt.Before(t):
			carried = append(carried, attempt{fl, fl.grant, fl.sentAt, fl.freed})
		}
		fl.mu.Unlock()
	}
	return ours, carried
}

// ours counts the requests that Envoy does not carry.
func (f *flights) ours() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, fl := range f.by {
		fl.mu.Lock()
		if fl.grant == nil {
			n++
		}
		fl.mu.Unlock()
	}
	return n
}

// all are the requests that have not ended.
func (f *flights) all() []*flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.by))
}

// active counts the requests that have not been answered.
func (f *flights) active() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, fl := range f.by {
		fl.mu.Lock()
		if !fl.done && !fl.freed {
			n++
		}
		fl.mu.Unlock()
	}
	return n
}

// note writes into the request's record.
func (fl *flight) note(write func(*Record)) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if !fl.ended {
		write(&fl.rec)
	}
}

// carry hands a slot to the attempt that Envoy makes. A request that Envoy has ended
// in the meantime gives it back at once, and is not carried. What is on record must be
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

// place is where the request stood among the waiters; 0: it did not wait.
func (fl *flight) place() uint64 {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.seq
}

// take takes the slot back from an attempt that failed; nil when there is none.
func (fl *flight) take() holdstate.Grant {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	g := fl.grant
	fl.grant = nil
	return g
}

// free gives an attempt's slot back before its record has come. The request keeps
// the grant, as it may not be the one whose record is lost.
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

// isFreed says whether the request is without a slot and its record has not come.
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

// died counts the death of an engine that had taken the request. It reports whether
// the request must not be tried again: two engines died under it, or one three times.
func (fl *flight) died(address string) (over bool) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.deaths == nil {
		fl.deaths = map[string]int{}
	}
	fl.deaths[address]++
	return len(fl.deaths) >= 2 || fl.deaths[address] >= 3
}

// pass counts a pass through the rehold lane.
func (fl *flight) pass() int {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.passes++
	return fl.passes
}
