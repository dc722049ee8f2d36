// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"time"
)

// InFlight returns the number of requests whose answer has not ended.
func (s *Server) InFlight() int {
	return s.flights.count(func(fl *flight) bool { return !fl.done() && !fl.slotFreed })
}

// WaitForHolds returns when no request waits or is relayed any more, or when ctx
// ends. New holds must have been stopped before.
func (s *Server) WaitForHolds(ctx context.Context) {
	poll(ctx, func() bool { return s.holds.Load() == 0 })
}

// WaitForLogEntries returns when the log entries of all requests that Envoy does not carry have
// arrived, after logWait, or when ctx ends. Records may arrive even if no log stream is
// open, because Envoy opens one with its first record.
func (s *Server) WaitForLogEntries(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	poll(ctx, func() bool {
		return s.flights.count(func(fl *flight) bool { return fl.grant == nil }) == 0
	})
}

// poll returns when done returns true, or when ctx ends.
func poll(ctx context.Context, done func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// EndAll ends every request that is left. The gRPC server must have stopped, so that no
// more entries can arrive: the requests that Envoy still carries end as lost.
func (s *Server) EndAll() {
	for _, fl := range s.flights.all() {
		if fl.isCarried() {
			s.endLost(fl)
		} else {
			s.end(fl)
		}
	}
}

// EndLogs ends Envoy's log streams, which Envoy never ends itself. A request whose stream is
// cut after that is recorded as refused because of the shutdown.
func (s *Server) EndLogs() { close(s.closing) }

func (s *Server) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}
