// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/proc"
)

// withPort is onDemand whose engine gets its port at each start.
func withPort(t *testing.T, r *router, mode string) Config {
	t.Helper()
	cfg := onDemand(t, r, mode)
	cfg.Ports, cfg.BackendURL = &Ports{}, ""
	cfg.Env[1] = "TEST_ADDRESS=127.0.0.1:{port}"
	return cfg
}

// stranger answers at an address as another model's engine does.
func stranger(t *testing.T, address string) (asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return asked
}

func TestPortsAreNeverGivenTwice(t *testing.T) {
	t.Parallel()
	var p Ports
	given := map[netip.AddrPort]bool{}
	for range 2000 {
		l, err := p.choose(t.Context())
		require.NoError(t, err)
		require.False(t, given[addressOf(l)])
		given[addressOf(l)] = true
		require.NoError(t, l.Close())
	}
}

func TestEngineGetsAnotherPortWhenItsOwnIsInUse(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := start(t, withPort(t, r, "serve"))
	r.await("agent registered")
	before := r.Agents()[0].Address
	asked := stranger(t, before)
	r.SetWanted("llama", true)
	r.await("ready")
	slot, _ := r.TakeFrom(llama, nil)
	require.NotEqual(t, before, slot.Agent().Address)
	require.Equal(t, http.StatusOK, statusOf(t, slot.Agent().Address))
	require.Zero(t, asked.Load())
	slot.Release()
	a.stop(t)
}

// An agent that comes when its router was replaced reaches the replaced one over the new one.
func TestANewAgentReachesARouterThatWasReplaced(t *testing.T) {
	t.Parallel()
	before, next := newRouter(t), newRouter(t)
	path := t.TempDir() + "/former.sock"
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	server := grpc.NewServer(before.ServerOptions()...)
	agentregpb.RegisterAgentRegistryServer(server, before.FormerService())
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	next.SetFormer(map[string]string{before.RouterID(): path})
	a := start(t, withPort(t, next, "serve"))
	next.await("agent registered")
	before.await("agent registered")
	next.SetFormer(map[string]string{before.RouterID(): path}) // nothing new
	stranger(t, before.Agents()[0].Address)                    // the engine gets another address
	before.SetWanted("llama", true)
	before.await("ready")
	slot, _ := before.TakeFrom(llama, nil)
	require.Equal(t, http.StatusOK, statusOf(t, slot.Agent().Address))
	slot.Release()
	before.SetWanted("llama", false)
	next.SetFormer(nil)
	before.Drain()
	before.await("agent left")
	a.stop(t)
}

// A router that is being replaced still wakes an engine for its requests, whose address changes.
func TestEngineGetsAnotherPortForARouterThatIsBeingReplaced(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := start(t, withPort(t, r, "serve"))
	r.await("agent registered")
	before := r.Agents()[0].Address
	path := strings.TrimPrefix(r.target, "unix://")
	require.NoError(t, os.Remove(path))
	next := routerAt(t, path)
	require.Len(t, r.Succeed(), 1)
	next.await("agent registered")
	stranger(t, before)
	r.SetWanted("llama", true)
	r.await("ready")
	polltest.Within(t, 10*time.Second, "the agent serves at another address", func() bool { return next.Serving(llama) == 1 && next.Agents()[0].Address != before })
	slot, _ := r.TakeFrom(llama, nil)
	require.NotEqual(t, before, slot.Agent().Address)
	slot.Release()
	r.SetWanted("llama", false)
	a.stop(t)
}

func TestEngineThatBindsLateIsNotTakenForWhoeverWasFaster(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := withPort(t, r, "late")
	words, out := io.Pipe()
	cfg.Stderr = out
	a := start(t, cfg)
	r.await("agent registered")
	before := r.Agents()[0].Address
	r.SetWanted("llama", true)
	_, err := bufio.NewReader(words).ReadString('\n') // it runs, and does not listen yet
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, words) }()
	stranger(t, before)
	a.await("starting the engine again, with another port")
	r.await("ready")
	slot, _ := r.TakeFrom(llama, nil)
	require.NotEqual(t, before, slot.Agent().Address)
	slot.Release()
	a.stop(t)
}

func statusOf(t *testing.T, address string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/health", nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	return res.StatusCode
}

// elsewhere starts the engine of the tests so that it is no process of this agent's
// engine, nor below this program, as one in a container or a daemon is.
func elsewhere(t *testing.T, address string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "setsid "+self+" >/dev/null 2>&1 & echo $!")
	cmd.Env = append(os.Environ(), "TEST_ENGINE=serve", "TEST_ADDRESS="+address)
	out, err := cmd.Output()
	require.NoError(t, err)
	t.Cleanup(func() { _ = exec.CommandContext(context.Background(), "kill", strings.TrimSpace(string(out))).Run() })
	for len(listening(netip.MustParseAddrPort(address))) == 0 {
		<-time.After(10 * time.Millisecond)
	}
}

func TestOwnerOfTheEnginesPort(t *testing.T) {
	t.Parallel()
	sleep, err := proc.Start(exec.CommandContext(t.Context(), "sleep", "600"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = sleep.Stop(time.Second) })
	for name, tc := range map[string]struct {
		listen func(t *testing.T, address string)
		models string // as the one who listens lists them
		err    string
	}{
		"nobody that can be seen":     {func(*testing.T, string) {}, "", ""},
		"another one of this program": {func(t *testing.T, address string) { t.Helper(); stranger(t, address) }, "", "another engine of this program listens"},
		"this one, with its model":    {func(*testing.T, string) {}, `{"data":[{"id":"llama"}]}`, ""},
		"this one, with another":      {func(*testing.T, string) {}, `{"data":[{"id":"qwen"}]}`, "another engine of this program listens"},
		"somebody else":               {elsewhere, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := freeAddress(t)
			if tc.models != "" {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tc.models)) }))
				t.Cleanup(s.Close)
				address = s.Listener.Addr().String()
			}
			tc.listen(t, address)
			a, err := newAgent(t.Context(), Config{
				ID: "a", Engine: engines.Custom, Models: []string{"llama"}, BackendURL: "http://" + address, Exec: []string{"sleep"},
			})
			require.NoError(t, err)
			err = a.checkOwner(t.Context(), &engine{proc: sleep})
			if tc.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, errPortTaken)
			require.ErrorContains(t, err, tc.err)
		})
	}
}

func TestAddressOfASocketInProc(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"00000000000000000000000001000000:0050": "[::1]:80",
		"0000000000000000FFFF00000100007F:0050": "127.0.0.1:80",
		"00000000000000000000000000000000:0001": "[::]:1",
	} {
		got, err := parseSocketAddress(text)
		require.NoError(t, err)
		require.Equal(t, want, got.String())
	}
	for _, bad := range []string{"", "0100007F", "xx:1", "0100007F:10000", "01:1"} {
		_, err := parseSocketAddress(bad)
		require.Error(t, err, bad)
	}
}
