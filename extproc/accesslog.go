// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
)

// accessLog is the service that receives Envoy's log entries.
type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	s *Server
}

// StreamAccessLogs serves a log stream. Each of Envoy's worker threads opens one.
func (a *accessLog) StreamAccessLogs(gs accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	ended, got := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		a.receive(gs, got)
	}()
	select {
	case <-ended:
	case <-a.s.closing:
	case <-a.s.moving:
		a.await(got, ended)
	}
	return nil
}

// logQuiet is how long a log stream that moves may be without a message.
const logQuiet = time.Second

// await waits for the best moment to end a log stream that Envoy goes on writing to: just after a
// message. Envoy sends one at most every 5 ms, and what it sends before it knows of the end is
// lost. It returns at once if the stream ends, and after a time without a message.
func (a *accessLog) await(got, ended <-chan struct{}) {
	timeout := time.NewTimer(logQuiet)
	defer timeout.Stop()
	select {
	case <-got:
	case <-timeout.C:
	case <-ended:
	case <-a.s.closing:
	}
}

// receive receives entries until Envoy ends the stream. After a message that it has handled it
// sends to got, if somebody receives there.
func (a *accessLog) receive(gs accesslogv3.AccessLogService_StreamAccessLogsServer, got chan<- struct{}) {
	from := envoyOf(gs.Context())
	var m wire.LogMessage
	if gs.RecvMsg(&m) != nil {
		return
	}
	name := m.Name // only the first message of a stream contains the name of its log
	if isEdge(name) {
		a.s.logs.opened(from)
		defer a.s.logs.closed(a.s, from)
	}
	told := !isEdge(name)
	for more := true; more; more = gs.RecvMsg(&m) == nil {
		if !told && m.Tells() {
			told = true
			a.s.logTells(from)
		}
		a.s.onLogMessage(name, &m)
		select {
		case got <- struct{}{}:
		default:
		}
	}
}

// isEdge reports whether a log is that of the edge.
func isEdge(name string) bool { return name == envoy.LogForwarded || name == envoy.LogEdge }

// onLogMessage handles the log entries of a message.
func (s *Server) onLogMessage(name string, m *wire.LogMessage) {
	if !isEdge(name) {
		return
	}
	for i := range m.Entries {
		e := &m.Entries[i]
		if name == envoy.LogForwarded && e.Client.IsValid() {
			e.Source = e.Client
		}
		s.onLogEntry(e)
	}
}
