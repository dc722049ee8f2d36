// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"time"

	"github.com/holdgate/holdgate/envoy"
)

// A lost record would keep its request's slot for ever. The counts of engines and Envoys
// correct that: when an engine has fewer requests than were sent to it, slots are given
// back, the oldest first. Which of the requests lost its record cannot be known, so each
// stays until its record comes, or until no Envoy carries a request that could be it.
// Then it ends without a record.

const (
	// settle is how much older than the first of two counts a request must be: it has
	// reached its engine by then.
	settle = 5 * time.Second
	// recordWait is how long a request may be without its slot. No answer of an engine
	// takes longer.
	recordWait = time.Hour
)

// Look is what all Envoys carried at one moment.
type Look struct {
	At time.Time
	envoy.Load
}

// Carries reports whether Envoy carries a request that began before the time, so that a
// look at the Envoys is of use.
func (s *Server) Carries(before time.Time) bool {
	_, carried := s.flights.begunBefore(before, s.logs.isOpen)
	return len(carried) > 0
}

// Correct compares two looks in a row at the Envoys with what is carried now. It does
// nothing when there are Envoys that were not looked at.
func (s *Server) Correct(first, second Look) {
	if s.logs.streams() != second.Logs {
		return
	}
	// At both looks Envoy had each of these, unless it had ended. The record of one that
	// ended before the first look has come by now.
	streams, carried := s.flights.begunBefore(first.At.Add(-settle), s.logs.isOpen)
	to := map[string][]attempt{}
	for _, a := range carried {
		to[a.grant.Replica().Address] = append(to[a.grant.Replica().Address], a)
	}
	for address, attempts := range to {
		s.free(attempts, max(first.To[address], second.To[address]))
	}
	if max(first.Edge, second.Edge) <= streams { // no Envoy carries any of them
		for _, a := range carried {
			s.lost(a.fl)
		}
	}
}

// Free gives back slots of a replica that had at most so many requests at two heartbeats
// in a row. first is the time of the first one.
func (s *Server) Free(address string, most int, first time.Time) {
	_, carried := s.flights.begunBefore(first.Add(-settle), func(string) bool { return true })
	s.free(slices.DeleteFunc(carried, func(a attempt) bool { return a.grant.Replica().Address != address }), most)
}

// free gives back the slots of a replica's oldest requests, but for as many as most.
func (s *Server) free(carried []attempt, most int) {
	carried = slices.DeleteFunc(carried, func(a attempt) bool { return a.freed })
	slices.SortFunc(carried, func(a, b attempt) int { return a.at.Compare(b.at) })
	n := 0
	for _, a := range carried[:max(0, len(carried)-most)] {
		if a.free() {
			n++
			time.AfterFunc(recordWait, func() {
				if a.fl.isFreed() {
					s.lost(a.fl)
				}
			})
		}
	}
	if n > 0 {
		s.d.Observer.Freed(carried[0].grant, n)
	}
}
