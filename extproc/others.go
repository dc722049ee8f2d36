// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"time"

	"github.com/holdgate/holdgate/extproc/wire"
)

// Others are the processes that this one has replaced and that have requests yet, and the one that
// has replaced it. Envoy may send the log entries of their requests to this process. The methods
// must not block.
type Others interface {
	// Logged is called with each log entry of a request that this process does not know.
	Logged(e *wire.LogEntry)
	// EnvoyGone is called when an Envoy has ended that had its last log stream until a time.
	EnvoyGone(envoy string, closed time.Time)
	// Claimed is called when a request that this process does not know came back from Envoy,
	// because an engine gave no answer. From then on it is a request of this process.
	Claimed(requestID string)
}

// MoveLogs ends Envoy's log streams, so that Envoy opens them again at the process that replaces
// this one. From then on that process passes on the log entries of this one's requests, and tells
// when an Envoy has ended.
func (s *Server) MoveLogs() { close(s.moving) }

// moves reports whether MoveLogs was called.
func (s *Server) moves() bool {
	select {
	case <-s.moving:
		return true
	default:
		return false
	}
}

// Logged handles a log entry that another process received. It returns false if this process does
// not know the request.
func (s *Server) Logged(e *wire.LogEntry) (known bool) { return s.logEntry(e) }

// EnvoyGone ends the requests that an Envoy carried whose last log stream closed at a time.
func (s *Server) EnvoyGone(envoy string, closed time.Time) { s.endCarried(envoy, closed) }

// Claimed ends a request that Envoy carried, without a record, because it continues in another
// process.
func (s *Server) Claimed(requestID string) {
	fl, _ := s.flights.findOrLeft(requestID)
	switch {
	case fl == nil && s.d.Others != nil:
		s.d.Others.Claimed(requestID)
	case fl != nil && fl.isCarried():
		s.flights.remove(fl)
	}
}

// WaitForAll returns when no request is left, or when ctx ends.
func (s *Server) WaitForAll(ctx context.Context) {
	poll(ctx, func() bool {
		return s.holds.Load() == 0 && s.flights.count(func(*flight) bool { return true }) == 0
	})
}
