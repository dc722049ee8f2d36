// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"

	"github.com/holdgate/holdgate/extproc/wire"
)

// earlyRecords are the last records whose request was not known yet: they come on a
// connection of their own, and a client may leave before we have read its headers.
type earlyRecords struct {
	by   map[string]wire.LogEntry
	ring [4096]string
	next int
}

func (e *earlyRecords) put(entry *wire.LogEntry) {
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

func (e *earlyRecords) take(stream string) (entry wire.LogEntry, ok bool) {
	entry, ok = e.by[stream]
	delete(e.by, stream)
	return entry, ok
}

// leave remembers a request whose client left while Envoy carried it. The lane may
// take it over in this moment.
func (f *flights) leave(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left[f.nextLeft] = id
	f.nextLeft = (f.nextLeft + 1) % len(f.left)
}

// findOrLeft is the request with this id, or says that its client has left.
func (f *flights) findOrLeft(id string) (fl *flight, left bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl = f.by[id]
	return fl, fl == nil && id != "" && slices.Contains(f.left[:], id)
}
