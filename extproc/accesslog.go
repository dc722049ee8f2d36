// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"net"
	"sync"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc/peer"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
)

// accessLog receives Envoy's records: they end the requests that Envoy carries.
type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	s *Server
}

// StreamAccessLogs serves one of Envoy's log streams; each of its workers has one.
func (a *accessLog) StreamAccessLogs(gs accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.receive(gs)
	}()
	select {
	case <-ended:
	case <-a.s.closing:
	}
	return nil
}

// receive takes records until Envoy has gone.
func (a *accessLog) receive(gs accesslogv3.AccessLogService_StreamAccessLogsServer) {
	from := peerOf(gs.Context())
	var m wire.LogMessage
	if gs.RecvMsg(&m) != nil {
		return
	}
	// Only the first message of a stream names its log.
	forwarded := m.Name == envoy.LogForwarded
	edge := forwarded || m.Name == envoy.LogEdge
	if edge {
		a.s.logs.opened(from)
		defer a.s.logs.closed(a.s, from)
	}
	for more := true; more; more = gs.RecvMsg(&m) == nil {
		for i := range m.Entries {
			if forwarded && m.Entries[i].Client.IsValid() {
				m.Entries[i].Source = m.Entries[i].Client
			}
			if edge {
				a.s.record(&m.Entries[i])
			}
		}
	}
}

// peerOf is the address that Envoy called from. Over a unix socket it is Envoy's
// process.
func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		if tcp, ok := p.Addr.(*net.TCPAddr); ok {
			return tcp.IP.String() // each connection has its own port
		}
		return p.Addr.String()
	}
	return ""
}

// WaitForRecords returns when Envoy's records of what it does not carry have come. It
// waits no longer than for one answer's record, or until ctx ends. Envoy opens its log
// stream with the first record, so that there may be none yet.
func (s *Server) WaitForRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, logWait)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.flights.ours() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// EndAll ends every request that is left, for no record of it can come any more: the
// gRPC server has stopped. What Envoy still carries ends without its record.
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

// overUnix says whether Envoy called over a unix socket.
func overUnix(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.Addr.Network() == "unix"
}

// EndLogs ends Envoy's log streams, which it never ends itself. Requests whose streams
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

// record takes Envoy's word on a request. Envoy ends those that it carries; what we
// answer ourselves ends with its stream, and is then only joined with the record.
func (s *Server) record(e *wire.LogEntry) {
	fl := s.flights.of(e)
	if fl == nil {
		return
	}
	fl.mu.Lock()
	if fl.ended {
		fl.mu.Unlock()
		return
	}
	fl.logged = true
	fl.rec.logged(e)
	carried := fl.grant != nil
	over := fl.done || carried
	fl.mu.Unlock()
	if carried && e.Left {
		s.flights.leave(fl.id)
	}
	if over {
		s.ended(fl)
	}
}

// logWait is how long an answer of ours waits for its record, which comes within
// milliseconds.
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
		s.report(fl, rec)
	}
}

func (s *Server) report(fl *flight, rec *Record) {
	if rec.Duration == 0 {
		rec.Duration = time.Since(fl.arrived)
	}
	s.d.Observer.Ended(rec)
}

// logStreams counts the open streams of the edge's log, by where Envoy calls from.
// When the last one stays closed, that Envoy has gone, and with it every request
// that it carried.
type logStreams struct {
	mu   sync.Mutex
	open map[string]int
}

// envoyGone is how long an Envoy may be without a log stream before its requests
// count as ended. It connects again at its next record.
const envoyGone = 10 * time.Second

func (l *logStreams) opened(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[string]int{}
	}
	l.open[from]++
}

func (l *logStreams) closed(s *Server, from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from]--; l.open[from] > 0 {
		return
	}
	delete(l.open, from)
	closed := time.Now()
	time.AfterFunc(envoyGone, func() {
		if l.isOpen(from) {
			return // the same process, or one at the same address
		}
		s.endCarried(from, closed)
	})
}

func (l *logStreams) isOpen(from string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[from] > 0
}

// streams counts those of all Envoys.
func (l *logStreams) streams() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, open := range l.open {
		n += open
	}
	return n
}

// endCarried ends what an Envoy carried that does not come back.
func (s *Server) endCarried(from string, closed time.Time) {
	old := s.flights.carried(from, closed)
	for _, fl := range old {
		s.lost(fl)
	}
	if len(old) > 0 {
		s.d.Log.Warn().Int("requests", len(old)).Msg("Envoy closed its access log and did not come back: its requests count as ended")
	}
}
