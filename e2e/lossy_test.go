// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/holdgate/holdgate/envoy"
)

// lossyLog forwards the access log from Envoy to Holdgate, and loses records.
type lossyLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	to    accesslogv3.AccessLogServiceClient
	every atomic.Int64 // loses one of this many records; 0: none
	seen  atomic.Int64
	lost  atomic.Int64 // lost records of requests that Envoy carried
	cut   atomic.Bool  // ends the stream at its next message
}

var errCut = errors.New("cut")

// StreamAccessLogs forwards the records that are not lost.
func (l *lossyLog) StreamAccessLogs(from accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	// The address that Envoy tells of itself is part of the name by which the router knows it.
	said, _ := metadata.FromIncomingContext(from.Context())
	ctx := metadata.NewOutgoingContext(from.Context(), metadata.MD{"x-forwarded-for": said.Get("x-forwarded-for")})
	to, err := l.to.StreamAccessLogs(ctx)
	if err != nil {
		return err
	}
	for {
		m, err := from.Recv()
		if err != nil {
			return err
		}
		if logs := m.GetHttpLogs(); logs != nil {
			logs.LogEntry = l.filter(logs.GetLogEntry())
		}
		if err := to.Send(m); err != nil {
			return err
		}
		if l.cut.Swap(false) {
			return errCut
		}
	}
}

func (l *lossyLog) filter(entries []*dataaccesslogv3.HTTPAccessLogEntry) (kept []*dataaccesslogv3.HTTPAccessLogEntry) {
	for _, e := range entries {
		every := l.every.Load()
		if every == 0 || l.seen.Add(1)%every != 0 {
			kept = append(kept, e)
			continue
		}
		mode := e.GetCommonProperties().GetMetadata().GetFilterMetadata()[envoy.Namespace].GetFields()[envoy.ModeKey]
		if mode.GetStringValue() == envoy.ModeNative {
			l.lost.Add(1)
		}
	}
	return kept
}

// startLossySite starts a site whose Envoy sends its records through a log that can
// lose them, and which queries its Envoy.
func startLossySite(t *testing.T, flags ...string) (*site, *lossyLog, func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	// Not over a unix socket: over it the log's calls would seem to come from this
	// process.
	extProc, admin := closedPort(t), closedPort(t)
	flags = append(flags, "--extproc-listen", extProc, "--envoy-admin", "http://"+admin)
	restart := func() {
		s.startApp(dir, flags)
		require.Equal(t, 200, s.putMap(testMap).status)
	}
	restart()
	l, listen := newLossyLog(t, extProc)
	b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", AdminListen: admin, ExtProc: extProc, LanesDir: dir})
	require.NoError(t, err)
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == "holdgate_log" {
			c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().Address = socketAddress(listen)
		}
	}
	s.envoy = runEnvoy(t, b, dir, s.log)
	s.url = "http://" + s.envoy.EdgeAddr()
	return s, l, restart
}

func newLossyLog(t *testing.T, to string) (*lossyLog, *net.TCPAddr) {
	t.Helper()
	conn, err := grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	l := &lossyLog{to: accesslogv3.NewAccessLogServiceClient(conn)}
	g := grpc.NewServer()
	accesslogv3.RegisterAccessLogServiceServer(g, l)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(func() {
		g.Stop()
		_ = conn.Close()
	})
	return l, listener.Addr().(*net.TCPAddr)
}

func socketAddress(a *net.TCPAddr) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: a.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port)},
	}}}
}

// A request whose record is lost keeps its slot until Envoy no longer carries it, and
// one that Envoy still carries keeps its slot.
func TestTheSlotOfALostRecordComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	s, log, _ := startLossySite(t, "--audit-file", path)
	finish := make(chan struct{})
	e := newEngine(t, blocking(finish))
	finished := sync.OnceFunc(func() { close(finish) })
	t.Cleanup(finished)
	s.register(hello("a", e.addr(), 2, "m"))
	long := s.start(t.Context(), chatPath, chatBody("m", false), "X-Block", "yes")
	s.eventually("the engine has it", func() bool { return e.count() == 1 })
	log.every.Store(1)
	require.Equal(t, 200, s.post(chatPath, chatBody("m", false)).status)
	s.eventually("its record is lost", func() bool { return log.lost.Load() == 1 })
	log.every.Store(0)
	require.Equal(t, 2, s.inFlight()["a"], "the loss is not detected yet")
	s.within(25, "its slot is back", func() bool { return s.inFlight()["a"] == 1 })
	require.Contains(t, s.log.String(), `"agent":"a","slots":1,`)
	s.metric("hivenet_lost_records_total", "0") // it could still be the record of the long request
	finished()
	require.Equal(t, 200, (<-long).status)
	s.within(25, "nothing is in flight", func() bool { return s.inFlight()["a"] == 0 && s.app.InFlight() == 0 })
	s.within(25, "it is logged", func() bool { return len(auditLines(t, path)) == 2 })
	var codes []any
	for _, rec := range auditLines(t, path) {
		codes = append(codes, rec["error_code"], rec["status"])
	}
	require.Equal(t, []any{"", 200.0, "record_lost", 0.0}, codes)
	s.metric("hivenet_lost_records_total", "1")
	s.atRest()
}

// blocking is an engine's script: some requests are answered only when finish is
// closed.
func blocking(finish <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Block") != "" {
			<-finish
		}
		_, _ = io.WriteString(w, `{"answer":true}`)
	}
}

// within waits longer than eventually does.
func (s *site) within(seconds int, what string, ok func() bool) {
	s.t.Helper()
	require.Eventually(s.t, ok, time.Duration(seconds)*time.Second, 50*time.Millisecond, what)
}

// inFlight returns the router's count for each agent.
func (s *site) inFlight() map[string]int {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.app.AdminAddr()+"/v1/status", http.NoBody)
	require.NoError(s.t, err)
	var status struct {
		InFlight int `json:"in_flight"`
		Agents   []struct {
			ID       string `json:"id"`
			InFlight int    `json:"in_flight"`
		} `json:"agents"`
	}
	require.NoError(s.t, json.Unmarshal([]byte(s.do(r).body), &status))
	all := map[string]int{"": status.InFlight}
	for _, a := range status.Agents {
		all[a.ID] = a.InFlight
	}
	return all
}

func auditLines(t *testing.T, path string) (lines []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var rec map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &rec), line)
		lines = append(lines, rec)
	}
	return lines
}
