// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/app"
	"github.com/holdgate/holdgate/internal/config"
)

func TestMain(m *testing.M) {
	runAsPicker()
	goleak.VerifyTestMain(m,
		// Two goroutines never end: the one whose thread starts children, and the
		// library's that removes old audit files.
		goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"),
		goleak.IgnoreAnyFunction("github.com/holdgate/holdgate/internal/proc.init.func1.1"),
	)
}

// buffer is a log that several goroutines write to.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// site is an Envoy with a holdgate behind it.
type site struct {
	t     *testing.T
	app   *app.App
	envoy *envoy.Process
	url   string
	admin string // host:port of the admin API
	log   *buffer
	http  *http.Client
	audit string // its audit file, if any
}

const testMap = `{"placements": [
	{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "60s"},
	{"model": "m", "kind": "embedding", "site": "here", "scale_from_zero": true},
	{"model": "m", "kind": "rerank", "site": "here", "scale_from_zero": true},
	{"model": "short", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "300ms"},
	{"model": "fixed", "kind": "chat", "site": "here"}]}`

// startSite starts both and pushes testMap.
func startSite(t *testing.T, flags ...string) *site {
	t.Helper()
	return startSiteBehind(t, func(*envoy.Config) {}, flags...)
}

// startSiteBehind is startSite with a change of the bootstrap.
func startSiteBehind(t *testing.T, change func(*envoy.Config), flags ...string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	s.startApp(dir, flags)
	s.startEnvoy(dir, change)
	if !strings.Contains(strings.Join(flags, " "), "--site-id=") {
		require.Equal(t, http.StatusOK, s.putMap(testMap).status)
	}
	return s
}

func newHTTPClient(t *testing.T) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func (s *site) startApp(dir string, flags []string) {
	c := &config.Serve{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(s.t, set.Parse(append([]string{
		"--site-id", "here",
		"--extproc-listen", "unix://" + filepath.Join(dir, envoy.ExtProcSocket),
		"--relay", "unix://" + filepath.Join(dir, envoy.RelaySocket),
		"--agents-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--drain-timeout", "5s",
		"--agent-liveness", "5m", // agents of tests send a status only on request
	}, flags...)))
	require.NoError(s.t, c.Validate())
	a, err := app.New(c, zerolog.New(s.log).Level(zerolog.DebugLevel))
	require.NoError(s.t, err)
	require.NoError(s.t, a.Start(context.Background()))
	s.app, s.admin = a, a.AdminAddr()
	s.t.Cleanup(func() { require.NoError(s.t, a.Stop(context.Background())) })
}

func (s *site) startEnvoy(dir string, change func(*envoy.Config)) {
	c := envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: dir}
	change(&c)
	b, err := envoy.Render(c)
	require.NoError(s.t, err)
	s.envoy = runEnvoy(s.t, b, dir, s.log)
	s.url = "http://" + s.envoy.EdgeAddr()
}

func startEnvoy(t *testing.T, dir string, log io.Writer, backendCAs ...string) *envoy.Process {
	t.Helper()
	b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: dir, BackendCAs: backendCAs})
	require.NoError(t, err)
	return runEnvoy(t, b, dir, log)
}

func runEnvoy(t *testing.T, b *bootstrapv3.Bootstrap, dir string, log io.Writer) *envoy.Process {
	t.Helper()
	bin, err := envoy.Find(t.Context())
	require.NoError(t, err)
	text, err := envoy.YAML(b)
	require.NoError(t, err)
	p, err := bin.Start(context.Background(), envoy.Options{Bootstrap: text, Dir: dir, Concurrency: 1, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop(5*time.Second)) })
	return p
}

// result is an HTTP answer, read to its end.
type result struct {
	status  int
	header  http.Header
	body    string
	err     error // of reading the body
	elapsed time.Duration
}

// do sends one request and reads the answer.
func (s *site) do(r *http.Request) result {
	s.t.Helper()
	begin := time.Now()
	resp, err := s.http.Do(r)
	if err != nil {
		return result{err: err, elapsed: time.Since(begin)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return result{status: resp.StatusCode, header: resp.Header, body: string(body), err: err, elapsed: time.Since(begin)}
}

// request returns a request to the edge; headers are pairs of name and value.
func (s *site) request(ctx context.Context, method, path, body string, headers ...string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func (s *site) post(path, body string, headers ...string) result {
	s.t.Helper()
	return s.do(s.request(s.t.Context(), http.MethodPost, path, body, headers...))
}

// start sends a request in the background.
func (s *site) start(ctx context.Context, path, body string, headers ...string) <-chan result {
	s.t.Helper()
	r := s.request(ctx, http.MethodPost, path, body, headers...)
	done := make(chan result, 1)
	go func() { done <- s.do(r) }()
	return done
}

func (s *site) putMap(text string) result {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPut, "http://"+s.admin+"/v1/sitemap", strings.NewReader(text))
	require.NoError(s.t, err)
	return s.do(r)
}

func (s *site) metrics() string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.admin+"/metrics", http.NoBody)
	require.NoError(s.t, err)
	return s.do(r).body
}

// eventually waits for a condition that another process brings about.
func (s *site) eventually(what string, ok func() bool) {
	s.t.Helper()
	require.Eventually(s.t, ok, 10*time.Second, 5*time.Millisecond, what)
}

// metric waits until a series has a value.
func (s *site) metric(series, value string) {
	s.t.Helper()
	line := series + " " + value + "\n"
	s.eventually(line, func() bool { return strings.Contains(s.metrics(), line) })
}

// atRest requires that every count is back to 0.
func (s *site) atRest() {
	s.t.Helper()
	s.metric(`hivenet_pending_demand{model="m"}`, "0")
	s.eventually("no request in flight", func() bool { return s.app.InFlight() == 0 })
}

const chatPath = "/v1/chat/completions"

func chatBody(model string, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"stream":%t,"messages":[{"role":"user","content":"hi"}]}`, model, stream)
}

// engine is an HTTP server that a test scripts.
type engine struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

// requestBody is the context key under which an engine's script finds the body.
type requestBody struct{}

// newEngine starts an engine; a nil handler answers 200 with a small JSON object.
func newEngine(t *testing.T, h http.HandlerFunc) *engine {
	t.Helper()
	e := &engine{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r = r.WithContext(context.WithValue(r.Context(), requestBody{}, string(body)))
		e.mu.Lock()
		e.requests = append(e.requests, r)
		e.bodies = append(e.bodies, string(body))
		e.mu.Unlock()
		if h != nil {
			h(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"answer":true}`)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) addr() string { return e.Listener.Addr().String() }

func (e *engine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.requests)
}

// last returns the last request with its body.
func (e *engine) last() (*http.Request, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.requests[len(e.requests)-1], e.bodies[len(e.bodies)-1]
}

// agent is a registered agent of a test.
type agent struct {
	t      *testing.T
	stream agentregpb.AgentRegistry_ConnectClient
	leave  func()
}

// hello returns the Hello of a test's agent.
func hello(id, address string, slots uint32, models ...string) *agentregpb.Hello {
	return &agentregpb.Hello{
		AgentId: id, Instance: uuid.NewString(), Address: address, Models: models,
		Kinds: []string{"chat", "embedding", "rerank"}, Slots: slots, Engine: "custom", Region: "test",
		State: agentregpb.State_STATE_SERVING,
	}
}

// register registers an agent and waits for its welcome.
func (s *site) register(h *agentregpb.Hello) *agent {
	s.t.Helper()
	conn, err := grpc.NewClient(s.app.AgentsAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := agentregpb.NewAgentRegistryClient(conn).Connect(ctx)
	require.NoError(s.t, err)
	a := &agent{t: s.t, stream: stream, leave: sync.OnceFunc(func() {
		cancel()
		_ = conn.Close()
	})}
	s.t.Cleanup(a.leave)
	require.NoError(s.t, stream.Send(&agentregpb.AgentMessage{Message: &agentregpb.AgentMessage_Hello{Hello: h}}))
	m, err := stream.Recv()
	require.NoError(s.t, err)
	require.NotNil(s.t, m.GetWelcome(), "%v", m)
	go a.answer(h.GetState())
	return a
}

// answer sends the statuses that the router requests.
func (a *agent) answer(state agentregpb.State) {
	for {
		m, err := a.stream.Recv()
		if err != nil {
			return
		}
		if q := m.GetStatusRequest(); q != nil {
			_ = a.stream.Send(&agentregpb.AgentMessage{Message: &agentregpb.AgentMessage_Status{
				Status: &agentregpb.Status{State: state, Healthy: true, Handled: q.GetSeq()},
			}})
		}
	}
}

// closedPort returns an address that refuses connections.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
