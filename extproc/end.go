// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"time"

	"github.com/holdgate/holdgate/extproc/wire"
)

// onLogEntry handles the log entry of a request. It ends a request that Envoy carries. The
// record of one that the router answers itself is only completed by it: see endLastPass.
func (s *Server) onLogEntry(e *wire.LogEntry) {
	if !s.logEntry(e) && s.d.Others != nil {
		s.d.Others.Logged(e)
	}
}

// logEntry is onLogEntry. It returns false if this process does not know the request.
func (s *Server) logEntry(e *wire.LogEntry) (known bool) {
	fl := s.flights.byEntry(e)
	if fl == nil {
		return false
	}
	fl.mu.Lock()
	if fl.ended {
		fl.mu.Unlock()
		return true
	}
	fl.logged = true
	fl.rec.logged(e)
	carried := fl.grant != nil
	done := fl.done()
	fl.mu.Unlock()
	if carried && e.Left {
		s.flights.leave(fl.id)
	}
	if carried || done {
		s.end(fl)
	}
	return true
}

// logWait is how long a request that the router has answered waits for its log entry,
// which usually arrives within milliseconds.
const logWait = 5 * time.Second

// endLastPass ends the last pass of a request that Envoy does not carry.
func (s *Server) endLastPass(fl *flight) {
	if g := fl.take(); g != nil {
		g.Release() // after a panic
	}
	fl.mu.Lock()
	fl.doneAt = time.Now()
	logged := fl.logged
	fl.mu.Unlock()
	if logged {
		s.end(fl)
		return
	}
	time.AfterFunc(logWait, func() { s.end(fl) })
}

// end ends a request and reports its record, once.
func (s *Server) end(fl *flight) {
	if rec, first := s.flights.remove(fl); first {
		s.report(fl, rec)
	}
}

// report reports the record of a request that has ended. Without a log entry, the duration
// is the time until the last pass ended, or until now.
func (s *Server) report(fl *flight, rec *Record) {
	if rec.Duration == 0 {
		rec.Duration = fl.duration()
	}
	s.d.Observer.Ended(rec)
}

// CodeRecordLost is the error code in the record of a request whose end is not known.
const CodeRecordLost = "record_lost"

// endLost ends a request whose record is lost.
func (s *Server) endLost(fl *flight) {
	rec, first := s.flights.remove(fl)
	if !first {
		return
	}
	if !fl.logged { // read without the lock: it does not change after the end
		rec.Status, rec.ErrorCode = 0, CodeRecordLost
	}
	s.report(fl, rec)
}
