// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"time"

	"github.com/holdgate/holdgate/envoy"
)

// If the log entry of a request were lost, the request would keep its slot for ever. The
// counts of engines and Envoys prevent that: when an engine has fewer requests than slots
// are taken on it, slots are released, the oldest first. It cannot be known which of the
// requests has lost its entry, so each stays in flight until its entry arrives, or until
// no Envoy carries a request that could be it. Then it ends without an entry.

const (
	// settle is how much older than the first of two counts a request must be, to be sure
	// that it has reached its engine.
	settle = 5 * time.Second
	// entryWait is how long a request may be in flight without its slot. No engine's answer
	// takes longer.
	entryWait = time.Hour
)

// Look has the number of requests that all Envoys carried at one moment.
type Look struct {
	At time.Time
	envoy.Load
}

// Carries reports whether an Envoy carries a request that was sent before a time, so that
// its log entry may be lost.
func (s *Server) Carries(before time.Time) bool {
	_, carried := s.flights.begunBefore(before, s.logs.isOpen)
	return len(carried) > 0
}

// Correct compares two consecutive looks at the Envoys with the requests in flight. It
// releases the slots, and ends the requests, that no Envoy carries any more. It does nothing
// when some Envoys were not looked at.
func (s *Server) Correct(first, second Look) {
	if s.logs.streams() != second.Logs {
		return
	}
	// Both looks have counted each of these, unless it had ended. The record of one that
	// ended before the first look has arrived by now.
	streams, carried := s.flights.begunBefore(first.At.Add(-settle), s.logs.isOpen)
	byAddress := map[string][]carriedAttempt{}
	for _, a := range carried {
		address := a.grant.Replica().Address
		if a.fl.to.throughGateway() {
			continue // the gateway may have sent it elsewhere
		}
		byAddress[address] = append(byAddress[address], a)
	}
	for address, attempts := range byAddress {
		s.free(attempts, max(first.To[address], second.To[address]))
	}
	if max(first.Edge, second.Edge) <= streams { // no Envoy carries any of them
		for _, a := range carried {
			s.endLost(a.fl)
		}
	}
}

// Free releases the slots of a replica that had at most running requests at two consecutive
// heartbeats. first is the time of the first one.
func (s *Server) Free(address string, running int, first time.Time) {
	_, carried := s.flights.begunBefore(first.Add(-settle), func(string) bool { return true })
	s.free(slices.DeleteFunc(carried, func(a carriedAttempt) bool { return a.grant.Replica().Address != address }), running)
}

// free releases slots of a replica, those of the oldest requests first, until as many are
// left as it has running requests.
func (s *Server) free(carried []carriedAttempt, running int) {
	carried = slices.DeleteFunc(carried, func(a carriedAttempt) bool { return a.freed })
	slices.SortFunc(carried, func(a, b carriedAttempt) int { return a.at.Compare(b.at) })
	n := 0
	for _, a := range carried[:max(0, len(carried)-running)] {
		if a.free() {
			n++
			time.AfterFunc(entryWait, func() {
				if a.fl.isFreed() {
					s.endLost(a.fl)
				}
			})
		}
	}
	if n > 0 {
		s.d.Observer.Freed(carried[0].grant, n)
	}
}
