// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"

	"github.com/holdgate/holdgate/envoy"
)

// accessLog receives Envoy's records: they end the requests that Envoy carries.
type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	s *Server
}

// StreamAccessLogs serves one of Envoy's log streams; each of its workers has one.
func (a *accessLog) StreamAccessLogs(gs accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	name := ""
	defer func() {
		if name == envoy.LogEdge {
			a.s.logs.closed(a.s)
		}
	}()
	var m logMessage
	for {
		if err := gs.RecvMsg(&m); err != nil {
			return nil
		}
		// Only the first message of a stream names its log.
		if name == "" {
			if name = m.name; name == envoy.LogEdge {
				a.s.logs.opened()
			}
		}
		if name != envoy.LogEdge {
			continue
		}
		for i := range m.entries {
			a.s.record(&m.entries[i])
		}
	}
}

// record takes Envoy's word on a request. Envoy ends those that it carries; what we
// answer ourselves ends with its stream, and is then only joined with the record.
func (s *Server) record(e *logEntry) {
	id := e.requestID
	if e.local {
		// The id that the client sent may be that of another request.
		id = e.flightID
	}
	fl := s.flights.find(id)
	if fl == nil || !e.local && !e.native && s.flights.isShared(fl) {
		return
	}
	fl.mu.Lock()
	fl.logged = true
	fl.rec.logged(e)
	over := fl.done || fl.grant != nil
	fl.mu.Unlock()
	if over {
		s.ended(fl)
	}
}

// logWait is how long an answer of ours waits for its record, which comes within
// a millisecond.
const logWait = 5 * time.Second

// finish is the end of our part in a request that Envoy does not carry.
func (s *Server) finish(fl *flight) {
	if g := fl.take(); g != nil {
		g.Release() // a crash left it
	}
	fl.mu.Lock()
	fl.done = true
	logged := fl.logged
	fl.mu.Unlock()
	if logged {
		s.ended(fl)
		return
	}
	time.AfterFunc(logWait, func() { s.ended(fl) })
}

// ended reports a request's end, once.
func (s *Server) ended(fl *flight) {
	if rec, first := s.flights.end(fl); first {
		if rec.Duration == 0 {
			rec.Duration = time.Since(fl.arrived)
		}
		s.d.Observer.Ended(rec)
	}
}

// logStreams counts the open streams of the edge's log. When the last one stays
// closed, Envoy has gone, and with it every request that it carried.
type logStreams struct {
	mu   sync.Mutex
	open int
	last *time.Timer
}

// envoyGone is how long Envoy may be without a log stream before its requests
// count as ended. It connects again at its next record.
const envoyGone = 10 * time.Second

func (l *logStreams) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	if l.last != nil {
		l.last.Stop()
	}
}

func (l *logStreams) closed(s *Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.open > 0 {
		return
	}
	closed := time.Now()
	l.last = time.AfterFunc(envoyGone, func() {
		old := s.flights.carried(closed)
		for _, fl := range old {
			s.ended(fl)
		}
		if len(old) > 0 {
			s.d.Log.Warn().Int("requests", len(old)).Msg("Envoy closed its access log and did not come back: its requests count as ended")
		}
	})
}
