// SPDX-License-Identifier: Apache-2.0

package events

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Type is what happened.
type Type string

// The types of events. The first four are about requests, the next four about models.
const (
	Held       Type = "held"
	Redirected Type = "redirected"
	Refused    Type = "refused"
	Left       Type = "left"     // the client of a held request went away
	Released   Type = "released" // held requests, because a replica came
	Waking     Type = "waking"
	Awake      Type = "awake"
	Asleep     Type = "asleep"
	Failed     Type = "failed" // a wake

	// Lost is sent to a reader that was too slow, or whose last event is not known. It is no
	// event of the log.
	Lost Type = "lost"
)

// Event is one thing that happened.
type Event struct {
	Type  Type      `json:"type"`
	Time  time.Time `json:"time"`
	Model string    `json:"model,omitzero"`
	Kind  string    `json:"kind,omitzero"`
	// Site is where a request was redirected.
	Site string `json:"site,omitzero"`
	// Status and Reason are those of a refusal, whose reason is its code. A failed wake has a
	// reason too.
	Status int    `json:"status,omitzero"`
	Reason string `json:"reason,omitzero"`
	// Requests is the number of requests that were released, Events that of events that were
	// lost.
	Requests int    `json:"requests,omitzero"`
	Events   uint64 `json:"events,omitzero"`
}

// isDecision reports whether the event is the decision on a request.
func (e *Event) isDecision() bool {
	return e.Type == Held || e.Type == Redirected || e.Type == Refused
}

// The sizes of a log, which are all the memory that it takes.
const (
	kept          = 1024 // events that a reader can still get
	keptDecisions = 50
	maxText       = 256 // bytes of a name or a reason
)

// Log has the last events. It is safe for concurrent use.
type Log struct {
	run     string // random, tells the ids of this process from those of another one
	maximum int    // readers

	mu        sync.Mutex
	last      uint64 // the number of the last event; the first is 1
	events    [kept]Event
	decided   uint64 // decisions so far
	decisions [keptDecisions]Event
	readers   map[*Reader]struct{}
	closed    bool
}

// NewLog returns a log without events, which 16 readers may read at the same time.
func NewLog() *Log {
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Log{run: hex.EncodeToString(id[:]), maximum: 16, readers: map[*Reader]struct{}{}}
}

// Allow sets how many readers may read the log at the same time.
func (l *Log) Allow(maximum int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.maximum = maximum
}

// Add adds an event, with the time of now. It does not block. It copies the texts, which may be
// parts of a request's body, and cuts long ones.
func (l *Log) Add(e Event) {
	e.Model, e.Site, e.Reason = short(e.Model), short(e.Site), short(e.Reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Time = time.Now()
	l.last++
	l.events[l.last%kept] = e
	if e.isDecision() {
		l.decisions[l.decided%keptDecisions] = e
		l.decided++
	}
	for r := range l.readers {
		r.wake()
	}
}

// short returns a copy of a text that is valid UTF-8 and has at most maxText bytes, and three
// more if it was cut.
func short(s string) string {
	if len(s) <= maxText {
		return strings.Clone(strings.ToValidUTF8(s, "\uFFFD"))
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// Decisions returns the last decisions on requests that were not served at once, the newest
// first.
func (l *Log) Decisions() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(l.decided, keptDecisions)
	list := make([]Event, 0, n)
	for i := range n {
		list = append(list, l.decisions[(l.decided-1-i)%keptDecisions])
	}
	return list
}

// Close ends all readers. There are none after it.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for r := range l.readers {
		r.wake()
	}
}

// Reader reads the events of a log from some event on. Only one goroutine may use it.
type Reader struct {
	l       *Log
	changed chan struct{}
	next    uint64 // the number of the next event
	unknown bool   // the id that it was to continue after is of no event of this log
}

// Read returns a reader of the events after the one with an id, for an empty id of those from
// now on. It returns nil if there are too many readers, or the log is closed. The caller must
// call Close.
func (l *Log) Read(after string) *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.readers) >= l.maximum {
		return nil
	}
	r := &Reader{l: l, changed: make(chan struct{}, 1), next: l.last + 1}
	if after != "" {
		if last, known := l.number(after); known {
			r.next = last + 1
		} else {
			r.unknown = true
		}
	}
	r.wake()
	l.readers[r] = struct{}{}
	return r
}

// number returns the number of the event with an id.
func (l *Log) number(id string) (n uint64, known bool) {
	run, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	return n, err == nil && run == l.run && n <= l.last
}

// Readers returns the number of readers.
func (l *Log) Readers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.readers)
}

func (r *Reader) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Changed returns a channel that gets a value when Next may have more.
func (r *Reader) Changed() <-chan struct{} { return r.changed }

// maxBatch is how many events Next returns at most.
const maxBatch = 64

// Next returns the next events, none if there are no more yet, and the id of the last of them.
// If events were lost, the first one says so. open is false after the log's Close, when there
// are no more events.
func (r *Reader) Next() (list []Event, id string, open bool) {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.unknown {
		r.unknown = false
		list = append(list, Event{Type: Lost, Time: time.Now(), Reason: "the last event is of another run of the router"})
	}
	if oldest := l.last + 1 - min(l.last, kept); r.next < oldest {
		list = append(list, Event{Type: Lost, Time: time.Now(), Reason: "too slow, or too long away", Events: oldest - r.next})
		r.next = oldest
	}
	for ; r.next <= l.last && len(list) < maxBatch; r.next++ {
		list = append(list, l.events[r.next%kept])
	}
	if r.next <= l.last {
		r.wake()
	}
	return list, l.run + "-" + strconv.FormatUint(r.next-1, 10), !l.closed || len(list) > 0
}

// Close ends the reader.
func (r *Reader) Close() {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	delete(r.l.readers, r)
}
