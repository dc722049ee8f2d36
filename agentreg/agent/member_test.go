// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/grpctest"
)

// backendRig is a backend in a bubble, and the router that checks it.
type backendRig struct {
	*network
	t       *testing.T
	reg     *agentreg.Registry
	cfg     Config
	hosts   atomic.Pointer[[]netip.Addr] // what its name stands for; nil: nothing
	noNames atomic.Bool                  // lookups fail
	lookups atomic.Int64
	wanted  atomic.Bool
	used    atomic.Bool
	changed chan struct{}
	models  []string // those that it named
	mu      sync.Mutex
	told    []string // of the questions
	refused sync.Map // addresses that answer nothing
	end     func()
}

// refuse reports whether an address does not answer while others do.
func (v *backendRig) refuse(address string, refuse bool) {
	v.refused.Delete(address)
	if refuse {
		v.refused.Store(address, true)
	}
}

// window is how long a backend is in use after its last request.
const window = 2 * time.Minute

// withBackend runs f with a backend of the name engine.test at 192.0.2.1.
func withBackend(t *testing.T, edit func(*Config), f func(v *backendRig)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := &backendRig{network: newNetwork(t), t: t, changed: make(chan struct{}, 1)}
		v.reg = agentreg.New(agentreg.Options{Log: zerolog.New(zerolog.NewTestWriter(t))})
		v.named("192.0.2.1")
		v.cfg = v.config()
		v.cfg.ID, v.cfg.BackendURL, v.cfg.Routers = "backend/b", "http://engine.test:8000", nil
		v.cfg.lookup = v.lookup
		v.cfg.roundTrip = func(at netip.AddrPort, r *http.Request) (*http.Response, error) {
			if _, refused := v.refused.Load(at.String()); refused {
				return nil, errors.New("connection refused")
			}
			return v.network.RoundTrip(r)
		}
		if edit != nil {
			edit(&v.cfg)
		}
		v.run()
		f(v)
		v.end()
	})
}

func (v *backendRig) run() {
	srv := grpc.NewServer(v.reg.ServerOptions()...)
	agentregpb.RegisterAgentRegistryServer(srv, v.reg.OwnService())
	lis := grpctest.Listen(nil)
	go func() { _ = srv.Serve(lis) }()
	ctx, cancel := context.WithCancel(v.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunBackend(ctx, v.cfg, Demand{
			Wanted:   func([]string) bool { return v.wanted.Load() },
			Used:     func([]string) bool { return v.used.Load() },
			InUse:    func(id string) bool { return v.reg.IdleFor(id) < window },
			Changed:  v.changed,
			OnModels: func(models, _ []string) { v.models = models },
			OnCheck:  func() { v.note("ask") },
			OnResult: func(err error) { v.note(fmt.Sprintf("up %t", err == nil)) },
			OnIdle:   func() { v.note("idle") },
		}, lis.Dial)
	}()
	v.end = func() {
		cancel()
		require.NoError(v.t, <-done)
		require.Empty(v.t, v.reg.Agents(), "it has sent Bye")
		srv.Stop()
	}
	synctest.Wait()
}

func (v *backendRig) note(what string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told = append(v.told, what)
}

// heard returns what was reported of checks since the last call.
func (v *backendRig) heard() []string {
	synctest.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	told := v.told
	v.told = nil
	return told
}

// named lets the name stand for the addresses.
func (v *backendRig) named(addresses ...string) {
	var ips []netip.Addr
	for _, a := range addresses {
		ips = append(ips, netip.MustParseAddr(a))
	}
	v.hosts.Store(&ips)
}

func (v *backendRig) lookup(context.Context, string) ([]netip.Addr, error) {
	v.lookups.Add(1)
	if v.noNames.Load() {
		return nil, errors.New("no name server answers")
	}
	return *v.hosts.Load(), nil
}

func (v *backendRig) want(wanted bool) {
	v.wanted.Store(wanted)
	notify(v.changed)
	synctest.Wait()
}

// state is the backend as the router sees it.
func (v *backendRig) state() string {
	v.t.Helper()
	agents := v.reg.Agents()
	if len(agents) == 0 {
		return "none"
	}
	require.Len(v.t, agents, 1)
	a := agents[0]
	require.Equal(v.t, a.State == "serving", a.InRouting)
	require.False(v.t, a.CanWake)
	return a.State + " " + a.Address
}

// asked returns how often the engine was checked since the last call.
func (v *backendRig) asked() int64 {
	synctest.Wait()
	return v.checks.Swap(0)
}

func TestABackendThatNobodyWantsIsNotAsked(t *testing.T) {
	withBackend(t, nil, func(v *backendRig) {
		v.health.Store(http.StatusOK)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		after(time.Hour)
		require.Zero(t, v.asked())
		require.EqualValues(t, 1, v.lookups.Load())
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
	})
}

func TestAWantedBackendIsAskedAtOnceAndUntilItServes(t *testing.T) {
	withBackend(t, nil, func(v *backendRig) {
		v.want(true)
		require.EqualValues(t, 1, v.asked(), "at once")
		after(time.Minute - time.Millisecond)
		require.EqualValues(t, 599, v.asked())
		require.EqualValues(t, 601, v.lookups.Load(), "once at the start, and for each question")
		after(2 * time.Minute)
		v.asked()
		after(time.Minute)
		require.EqualValues(t, 30, v.asked())
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())

		v.want(false)
		after(2 * time.Second)
		v.asked()
		after(time.Hour)
		require.Zero(t, v.asked(), "wanted no more")

		v.want(true)
		v.health.Store(http.StatusOK)
		after(100 * time.Millisecond)
		require.Equal(t, "serving 192.0.2.1:8000", v.state())
		require.Equal(t, 1, v.reg.Serving(llama))
	})
}

func TestABackendThatNobodyUsesIsLeftAloneUntilTheNextWish(t *testing.T) {
	withBackend(t, nil, func(v *backendRig) {
		v.health.Store(http.StatusOK)
		v.want(true)
		require.Equal(t, "serving 192.0.2.1:8000", v.state())
		v.want(false)
		slot, _ := v.reg.TakeFrom(llama, nil)
		after(2 * window)
		require.Equal(t, "serving 192.0.2.1:8000", v.state(), "it has a request")
		slot.Release()
		v.asked()
		after(window)
		require.InDelta(t, 60, v.asked(), 1)
		after(2 * time.Second)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		v.asked()
		after(time.Hour)
		require.Zero(t, v.asked())

		begin := time.Now()
		v.want(true)
		require.Equal(t, "serving 192.0.2.1:8000", v.state())
		require.Zero(t, time.Since(begin), "as soon as it answers")
		require.EqualValues(t, 1, v.asked())
	})
}

// A model that another replica serves is no reason not to look at this one.
func TestABackendIsLookedAtWhileItsModelIsUsed(t *testing.T) {
	withBackend(t, nil, func(v *backendRig) {
		v.heard()
		v.used.Store(true)
		after(2 * time.Second)
		require.Contains(t, v.heard(), "up false")
		after(time.Minute)
		require.InDelta(t, 30, v.asked(), 2, "no more often than one that serves")
		v.heard()
		after(500 * time.Millisecond)
		v.want(true)
		require.Equal(t, []string{"ask", "up false"}, v.heard(), "at once when somebody waits")
		after(time.Second)
		require.Len(t, v.heard(), 20)
		v.want(false)
		v.health.Store(http.StatusOK)
		after(2 * time.Second)
		require.Equal(t, "serving 192.0.2.1:8000", v.state())

		v.health.Store(0)
		after(10 * time.Second)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		v.health.Store(http.StatusOK)
		after(2 * time.Second)
		require.Equal(t, "serving 192.0.2.1:8000", v.state(), "it is back")
		v.health.Store(0)
		after(10 * time.Second)
		v.heard()
		v.used.Store(false)
		after(2 * time.Second)
		require.Contains(t, v.heard(), "idle")
		v.asked()
		after(time.Hour)
		require.Zero(t, v.asked())
	})
}

func TestABackendThatFailsIsLookedUpAgain(t *testing.T) {
	withBackend(t, nil, func(v *backendRig) {
		v.health.Store(http.StatusOK)
		v.want(true)
		v.want(false)
		slot, _ := v.reg.TakeFrom(llama, nil)
		v.health.Store(0)
		after(10 * time.Second)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		v.asked()
		after(time.Hour)
		require.Zero(t, v.asked(), "nobody waits for it")

		v.named()
		v.want(true)
		after(time.Second)
		require.Zero(t, v.asked(), "its name stands for nothing")
		v.named("2001:db8::1", "192.0.2.9")
		v.health.Store(http.StatusOK)
		after(100 * time.Millisecond)
		require.Contains(t, []string{"serving 192.0.2.9:8000", "serving [2001:db8::1]:8000"}, v.state())
		require.Equal(t, 1, v.reg.Serving(llama))
		slot.Release() // of an address that is no more
		require.Zero(t, v.reg.Agents()[0].InFlight)
	})
}

// A request has seen it refuse: one check decides, and those who wait are not told
// to wait for the next one.
func TestABackendThatRefusesARequestIsAskedAtOnce(t *testing.T) {
	withBackend(t, nil, func(v *backendRig) {
		v.health.Store(http.StatusOK)
		v.want(true)
		slot, _ := v.reg.TakeFrom(llama, nil)
		v.health.Store(0)
		slot.Failed("refused")
		slot.Release()
		synctest.Wait()
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		v.named("192.0.2.2")
		v.health.Store(http.StatusOK)
		after(100 * time.Millisecond)
		require.Equal(t, "serving 192.0.2.2:8000", v.state())

		slot, _ = v.reg.TakeFrom(llama, nil)
		slot.Failed("it was one bad connection")
		slot.Release()
		synctest.Wait()
		require.Equal(t, "serving 192.0.2.2:8000", v.state())
	})
}

func TestABackendWithoutModelsIsAskedForThemOnce(t *testing.T) {
	withBackend(t, func(c *Config) { c.Models, c.Kinds = nil, nil }, func(v *backendRig) {
		require.Equal(t, "none", v.state())
		v.engine = newFake(engines.VLLM)
		v.health.Store(http.StatusOK)
		after(time.Second)
		require.Equal(t, "serving 192.0.2.1:8000", v.state())
		require.Equal(t, []string{"llama", "sql-lora"}, v.models)
		after(window + 2*time.Second)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		v.asked()
		after(time.Hour)
		require.Zero(t, v.asked())
	})
}

func TestABackendIsWarmedUpBeforeItServes(t *testing.T) {
	f := newFake(engines.Ollama)
	f.refused.Store(2)
	withBackend(t, func(c *Config) { c.Engine = engines.Ollama }, func(v *backendRig) {
		v.engine = f
		v.health.Store(http.StatusOK)
		v.want(true)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		after(200 * time.Millisecond)
		require.Equal(t, "serving 192.0.2.1:8000", v.state())
		require.EqualValues(t, 3, f.completions.Load())
	})
}

func TestTheEngineIsAskedWithItsKey(t *testing.T) {
	t.Parallel()
	var got atomic.Value
	a := beside(t, newFake(engines.Custom), func(c *Config) { c.Engine, c.APIKey = engines.Custom, "secret" })
	a.api.client.Transport = roundTripFunc(func(r *http.Request) (*http.Response, error) {
		got.Store(r.Header.Get("Authorization"))
		return nil, errors.New("enough")
	})
	require.Error(t, a.health.check(t.Context()))
	require.Equal(t, "Bearer secret", got.Load())
}

func TestABackendOfABadURLIsRefused(t *testing.T) {
	t.Parallel()
	cfg := Config{ID: "backend/b", BackendURL: "ftp://engine.test", Engine: engines.Custom}
	err := RunBackend(t.Context(), cfg, Demand{}, func() (net.Conn, error) { return nil, errors.New("no") })
	require.ErrorContains(t, err, "backend backend/b: url: must be http://host:port or https://host:port")
	for _, good := range []string{"http://engine.test", "https://engine.test", "https://engine.test:8443/serve/m-1/", "http://[::1]:1/a.b"} {
		require.NoError(t, onlyError(parseRemote(good)), good)
	}
	for bad, want := range map[string]string{
		"http://h/v1": "must not end in /v1", "https://h/openai/v1/": "must not end in /v1", "http://h/a//b": "a path of letters", "http://h/../a": "a path of letters",
		"http://h/a%2Fb": "a path of letters", "http://h?x=1": "nothing but scheme", "http://u@h": "nothing but scheme", "https://h:0": "the port must be", "h": "must be http://",
	} {
		require.ErrorContains(t, onlyError(parseRemote(bad)), want, bad)
	}
}
