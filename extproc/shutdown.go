// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"time"
)

// InFlight is the number of requests between their headers and their answer's end.
func (s *Server) InFlight() int { return s.flights.active() }

// WaitForHolds returns when no request waits or is relayed any more, or when ctx
// ends. New holds must have been stopped before.
func (s *Server) WaitForHolds(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.holds.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// WaitForRecords returns when Envoy's records of the requests that it does not carry have
// come, after logWait, or when ctx ends. Envoy opens its log stream with the first record,
// so that there may be none yet.
func (s *Server) WaitForRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.flights.notCarried() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// EndAll ends every request that is left, when the gRPC server has stopped and no record
// can come any more. What Envoy still carries ends without its record.
func (s *Server) EndAll() {
	for _, fl := range s.flights.all() {
		fl.mu.Lock()
		carried := fl.grant != nil
		fl.mu.Unlock()
		if carried {
			s.lost(fl)
		} else {
			s.ended(fl)
		}
	}
}

// EndLogs ends Envoy's log streams, which Envoy never ends itself. Requests whose streams
// are cut after it are on record as ended by the shutdown.
func (s *Server) EndLogs() { close(s.closing) }

func (s *Server) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}
