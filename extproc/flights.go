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

// flights has the requests that have not ended: by id, which clients can choose but the
// router makes unique, and by Envoy's name, which no client can choose.
type flights struct {
	mu       sync.Mutex
	byID     map[string]*flight
	byStream map[string]*flight
	early    earlyEntries
	left     [256]string // ids of the last requests whose clients left while Envoy carried them
	nextLeft int
}

// start adds a request. An id that is not a UUID, or that is in flight, is replaced. If
// the log entry of the request arrived first, it is added to the flight.
func (f *flights) start(id []byte, stream, envoy string) *flight {
	fl := &flight{arrived: time.Now(), stream: stream, envoy: envoy}
	if len(id) == 36 {
		if _, err := uuid.ParseBytes(id); err == nil {
			fl.id = string(id)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byID == nil {
		f.byID, f.byStream = map[string]*flight{}, map[string]*flight{}
	}
	if f.byID[fl.id] != nil || fl.id == "" {
		fl.id = uuid.NewString()
	}
	if stream != "" {
		f.byStream[stream] = fl
		if entry, ended := f.early.take(stream); ended {
			fl.logged = true
			fl.rec.logged(&entry)
		}
	}
	f.byID[fl.id] = fl
	return fl
}

// byEntry returns the flight that an access-log entry belongs to, or nil. An entry of a
// gateway has only the request id. Clients choose it, and a request that the router
// has never seen may have the same one, so only an entry of a carried request counts.
func (f *flights) byEntry(e *wire.LogEntry) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.byStream[e.StreamID]; fl != nil {
		return fl
	}
	if fl := f.byID[e.RequestID]; fl != nil && fl.stream == "" && e.Native {
		return fl
	}
	f.early.put(e)
	return nil
}

// sentTo finds a request by Envoy's name. found is true if it was sent to a replica. g is
// the grant, nil if an earlier replica died under the request.
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

// remove removes a request, releases its slot and returns its record. ok is false when the
// request had ended before.
func (f *flights) remove(fl *flight) (rec *Record, ok bool) {
	f.mu.Lock()
	if f.byID[fl.id] == fl {
		delete(f.byID, fl.id)
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

// carried returns the requests that the Envoy at an address carries and that arrived before
// a time.
func (f *flights) carried(envoy string, before time.Time) []*flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	var old []*flight
	for _, fl := range f.byID {
		fl.mu.Lock()
		if fl.grant != nil && fl.envoy == envoy && fl.arrived.Before(before) {
			old = append(old, fl)
		}
		fl.mu.Unlock()
	}
	return old
}

// carriedAttempt is one attempt of a request, which Envoy carries.
type carriedAttempt struct {
	fl    *flight
	grant holdstate.Grant
	at    time.Time
	freed bool
}

// begunBefore returns what began before t and has not ended, of the Envoys for which from
// returns true: the number of requests with a stream here, and the attempts that Envoy
// carries.
func (f *flights) begunBefore(t time.Time, from func(envoy string) bool) (streams int, carried []carriedAttempt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.byID {
		fl.mu.Lock()
		switch {
		case fl.done() || !from(fl.envoy):
		case fl.grant == nil && fl.arrived.Before(t):
			streams++
		case fl.grant != nil && fl.sentAt.Before(t):
			carried = append(carried, carriedAttempt{fl, fl.grant, fl.sentAt, fl.slotFreed})
		}
		fl.mu.Unlock()
	}
	return streams, carried
}

// count returns the number of requests for which match returns true.
func (f *flights) count(match func(*flight) bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fl := range f.byID {
		fl.mu.Lock()
		if match(fl) {
			n++
		}
		fl.mu.Unlock()
	}
	return n
}

// all returns the requests that have not ended.
func (f *flights) all() []*flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.byID))
}

// leave stores the id of a request whose client left while Envoy carried it: a pass of it
// may be on its way through the rehold lane.
func (f *flights) leave(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left[f.nextLeft] = id
	f.nextLeft = (f.nextLeft + 1) % len(f.left)
}

// findOrLeft returns the request with this id, or nil. left is true when its client left
// while Envoy carried it.
func (f *flights) findOrLeft(id string) (fl *flight, left bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl = f.byID[id]
	return fl, fl == nil && id != "" && slices.Contains(f.left[:], id)
}

// earlyEntries has the latest log entries whose requests are not known yet. They arrive on
// their own connection, and a client may leave before the router has read its headers.
type earlyEntries struct {
	by   map[string]wire.LogEntry
	ring [4096]string
	next int
}

func (e *earlyEntries) put(entry *wire.LogEntry) {
	if entry.StreamID == "" || entry.Local || entry.Native {
		return
	}
	if e.by == nil {
		e.by = map[string]wire.LogEntry{}
	}
	delete(e.by, e.ring[e.next])
	e.by[entry.StreamID] = *entry
	e.ring[e.next] = entry.StreamID
	e.next = (e.next + 1) % len(e.ring)
}

func (e *earlyEntries) take(stream string) (entry wire.LogEntry, ok bool) {
	entry, ok = e.by[stream]
	delete(e.by, stream)
	return entry, ok
}
