// SPDX-License-Identifier: Apache-2.0

package extproc

import "slices"

// earlyRecords are the last records whose request was not known yet: they come on a
// connection of their own, and a client may leave before we have read its headers.
type earlyRecords struct {
	by   map[string]logEntry
	ring [4096]string
	next int
}

func (e *earlyRecords) put(entry *logEntry) {
	if entry.streamID == "" || entry.local || entry.native {
		return
	}
	if e.by == nil {
		e.by = map[string]logEntry{}
	}
	delete(e.by, e.ring[e.next])
	e.by[entry.streamID] = *entry
	e.ring[e.next] = entry.streamID
	e.next = (e.next + 1) % len(e.ring)
}

func (e *earlyRecords) take(stream string) (entry logEntry, ok bool) {
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
