// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// TestMain is also the engine that the tests start: the test binary again, with
// what it does in the environment.
func TestMain(m *testing.M) {
	if mode := os.Getenv("TEST_ENGINE"); mode != "" {
		fmt.Fprintln(os.Stderr, "engine of mode", mode)
		os.Exit(playEngine(mode))
	}
	os.Exit(m.Run())
}

func playEngine(mode string) int {
	switch mode {
	case "crash":
		fmt.Fprintln(os.Stderr, "loading HF_TOKEN=abcdefgh")
		fmt.Fprintln(os.Stderr, "out of memory")
		return 3
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	if mode == "late" {
		<-time.After(500 * time.Millisecond)
	}
	begin := time.Now()
	http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if mode == "never ready" || mode == "slow" && time.Since(begin) < time.Second {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	if mode == "cold" {
		var asked atomic.Int64
		http.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, "not loaded")
			}
		})
	}
	if mode == "busy" {
		var done atomic.Bool
		http.HandleFunc("POST /done", func(http.ResponseWriter, *http.Request) { done.Store(true) })
		http.HandleFunc("/slots", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `[{"is_processing": %t}]`, !done.Load())
		})
	}
	if err := http.ListenAndServe(os.Getenv("TEST_ADDRESS"), nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

var llama = target.Target{Model: "llama", Kind: target.Chat}

// event is a line of the router's or the agent's log.
type event struct {
	Message, Model, Cause, Reason, Error, State, Advice, Next string
}

// events collects log lines, so that tests can wait for them.
type events struct {
	t  *testing.T
	mu sync.Mutex
	// list are the lines that no wait has passed yet.
	list []event
	more chan struct{}
}

func newEvents(t *testing.T) *events {
	t.Helper()
	return &events{t: t, more: make(chan struct{}, 1)}
}

func (e *events) Write(p []byte) (int, error) {
	var ev event
	if err := json.Unmarshal(p, &ev); err != nil {
		return 0, err
	}
	e.mu.Lock()
	e.list = append(e.list, ev)
	e.mu.Unlock()
	notify(e.more)
	return len(p), nil
}

// take gives the lines so far, and forgets them.
func (e *events) take() []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list = nil
	return list
}

// await waits for a line, and forgets those before it.
func (e *events) await(message string) event {
	e.t.Helper()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	var seen []event
	for {
		e.mu.Lock()
		for len(e.list) > 0 {
			ev := e.list[0]
			e.list = e.list[1:]
			if ev.Message == message {
				e.mu.Unlock()
				return ev
			}
			seen = append(seen, ev)
		}
		e.mu.Unlock()
		select {
		case <-e.more:
		case <-timeout.C:
			require.Failf(e.t, "it was not logged", "%q, only %+v", message, seen)
		}
	}
}

// router is a registry on a unix socket.
type router struct {
	*agentreg.Registry
	*events
	target string
	server *grpc.Server
	failed chan string
}

// SetWanted is SetWish for requests that wait.
func (r *router) SetWanted(model string, wanted bool) {
	r.SetNeed(model, target.Need{Demand: wanted})
}

func newRouter(t *testing.T, options ...grpc.ServerOption) *router {
	t.Helper()
	return routerAt(t, t.TempDir()+"/agents.sock", options...)
}

func routerAt(t *testing.T, path string, options ...grpc.ServerOption) *router {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	return routerOn(t, lis, "unix://"+path, options...)
}

func routerOn(t *testing.T, lis net.Listener, target string, options ...grpc.ServerOption) *router {
	t.Helper()
	r := &router{events: newEvents(t), target: target, failed: make(chan string, 10)}
	r.Registry = agentreg.New(agentreg.Options{
		Log:          zerolog.New(r.events),
		OnWakeFailed: func(_, reason string) { r.failed <- reason },
	})
	r.server = grpc.NewServer(append(r.ServerOptions(), options...)...)
	agentregpb.RegisterAgentRegistryServer(r.server, r.Service())
	go func() { _ = r.server.Serve(lis) }()
	t.Cleanup(r.server.Stop)
	return r
}

// freeAddress is one where nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	return lis.Addr().String()
}

// onDemand is a configuration whose engine is the test binary in a mode.
func onDemand(t *testing.T, r *router, mode string) Config {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	address := freeAddress(t)
	return Config{
		Routers: []string{r.target}, ID: "a", Engine: engines.Custom, BackendURL: "http://" + address,
		Models: []string{"llama"}, Kinds: []string{"llm"}, Slots: 2,
		Exec: []string{self}, Env: []string{"TEST_ENGINE=" + mode, "TEST_ADDRESS=" + address},
	}
}

// running is an agent in the background of a test.
type running struct {
	*events
	end  func()
	done chan error
}

// stop ends the agent and waits for its end.
func (a *running) stop(t *testing.T) {
	t.Helper()
	a.end()
	select {
	case err := <-a.done:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "the agent does not end")
	}
}

// alive reports whether the process of pid runs.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// enginePid finds the engine by the address in its environment.
func enginePid(t *testing.T, cfg Config) int {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + d.Name() + "/environ")
		if err == nil && containsEnv(env, cfg.Env[1]) {
			return pid
		}
	}
	return 0
}
