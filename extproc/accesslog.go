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

// record ends the request that Envoy has ended. What we answered ourselves ends
// with its stream; its record has the id that the client sent, which may be that of
// another request.
func (s *Server) record(e *logEntry) {
	if e.local {
		return
	}
	if fl := s.flights.find(e.requestID); fl != nil && (e.native || !s.flights.isShared(fl)) {
		s.flights.end(fl)
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
		if n := s.flights.endAll(closed); n > 0 {
			s.d.Log.Warn().Int("requests", n).Msg("Envoy closed its access log and did not come back: its requests count as ended")
		}
	})
}
