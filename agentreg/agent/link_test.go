// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
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
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/grpctest"
)

// network connects agents and routers in a bubble.
type network struct {
	t  *testing.T
	mu sync.Mutex
	at map[string]*grpctest.Listener
	// health is the status that every engine answers; 0: it refuses.
	health atomic.Int64
	checks atomic.Int64
	// engine answers instead while health is 200, unless it is nil.
	engine http.Handler
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	return &network{t: t, at: map[string]*grpctest.Listener{}}
}

// router starts a router at the addresses.
func (n *network) router(options []grpc.ServerOption, addresses ...string) (*agentreg.Registry, *grpc.Server) {
	n.t.Helper()
	reg := agentreg.New(agentreg.Options{Log: zerolog.New(zerolog.NewTestWriter(n.t))})
	srv := grpc.NewServer(append(reg.ServerOptions(), options...)...)
	agentregpb.RegisterAgentRegistryServer(srv, reg.Service())
	lis := grpctest.Listen(grpctest.Loopback)
	n.mu.Lock()
	for _, a := range addresses {
		n.at[a] = lis
	}
	n.mu.Unlock()
	go func() { _ = srv.Serve(lis) }()
	n.t.Cleanup(srv.Stop)
	return reg, srv
}

func (n *network) dial(address string) (net.Conn, error) {
	n.mu.Lock()
	lis := n.at[address]
	n.mu.Unlock()
	if lis == nil {
		return nil, errors.New("connection refused")
	}
	return lis.Dial()
}

// RoundTrip is the engine.
func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != "/metrics" {
		n.checks.Add(1)
	}
	status := int(n.health.Load())
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	if n.engine != nil && status == http.StatusOK {
		w := httptest.NewRecorder()
		n.engine.ServeHTTP(w, r)
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		return w.Result(), nil
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader("{}")),
	}, nil
}

func (n *network) config() Config {
	return Config{
		Routers: []string{"127.0.0.1:9002"}, ID: "a", Engine: engines.VLLM, BackendURL: "http://127.0.0.1:8000",
		Models: []string{"llama"}, Kinds: []string{"llm"}, Slots: 2,
		HTTPClient: &http.Client{Transport: n}, Log: zerolog.New(zerolog.NewTestWriter(n.t)), dial: n.dial,
	}
}

// run runs an agent until the returned function ends it, or the test does.
func (n *network) run(cfg Config) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	end = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	n.t.Cleanup(func() { _ = end() })
	return end
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAgentRegistersWithin100MillisecondsOfTheFirstHealthyAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		n.health.Store(http.StatusServiceUnavailable)
		end := n.run(n.config())
		after(30*time.Second + time.Millisecond)
		require.Empty(t, reg.Agents())
		n.health.Store(http.StatusOK)
		after(eagerPoll)
		require.Equal(t, 1, reg.Serving(llama))
		require.NoError(t, end())
		synctest.Wait()
		require.Zero(t, reg.Serving(llama))
	})
}

func TestSlowHealthyAnswerIsAskedForEvery100Milliseconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		begin := time.Now()
		n.health.Store(http.StatusOK)
		n.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			healthy := time.Since(begin) > 30*time.Second
			time.Sleep(70 * time.Millisecond)
			if !healthy {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		n.run(n.config())
		after(10*time.Second - time.Millisecond)
		require.EqualValues(t, 100, n.checks.Load())
	})
}

func TestHealthIsAskedForLessOftenAfterAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.run(n.config())
		after(time.Minute - time.Millisecond)
		require.EqualValues(t, 600, n.checks.Load())
		n.checks.Store(0)
		after(10 * time.Minute)
		require.Less(t, n.checks.Load(), int64(500))
		n.checks.Store(0)
		after(time.Minute)
		require.EqualValues(t, 30, n.checks.Load())
	})
}

func TestThreeFailedChecksTakeTheEngineOutAndOneGoodOneBringsItBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		n.health.Store(http.StatusOK)
		n.run(n.config())
		after(time.Second)
		failFor := func(checks int64) {
			n.checks.Store(0)
			n.health.Store(0)
			for n.checks.Load() < checks {
				after(eagerPoll)
			}
		}
		failFor(2)
		require.Equal(t, 1, reg.Serving(llama))
		n.health.Store(http.StatusNoContent)
		after(time.Second)
		failFor(2)
		require.Equal(t, 1, reg.Serving(llama), "not in a row")
		failFor(1)
		require.Zero(t, reg.Serving(llama))
		require.Len(t, reg.Agents(), 1)
		n.health.Store(http.StatusOK)
		after(time.Second)
		require.Equal(t, 1, reg.Serving(llama))
	})
}

func TestEngineIsTakenOutAfterAsManyFailedChecksAsTheUserSays(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1, 5} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			reg, _ := n.router(nil, "127.0.0.1:9002")
			n.health.Store(http.StatusOK)
			cfg := n.config()
			cfg.UnhealthyAfter = int(limit)
			n.run(cfg)
			after(time.Millisecond)
			n.checks.Store(0)
			n.health.Store(http.StatusServiceUnavailable)
			for n.checks.Load() < limit {
				require.Equal(t, 1, reg.Serving(llama))
				after(eagerPoll)
			}
			require.Zero(t, reg.Serving(llama))
			n.health.Store(http.StatusOK)
			after(time.Second)
			require.Equal(t, 1, reg.Serving(llama))
		})
	}
}

func TestRefusedRequestIsFollowedByACheckAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		n.health.Store(http.StatusOK)
		n.run(n.config())
		after(time.Second)
		begin := time.Now()
		slot, _ := reg.TakeFrom(llama, nil)
		slot.Failed("connection refused")
		slot.Release()
		require.Zero(t, reg.Serving(llama))
		synctest.Wait()
		require.Equal(t, 1, reg.Serving(llama), "the engine is fine")

		n.health.Store(0)
		slot, _ = reg.TakeFrom(llama, nil)
		slot.Failed("connection refused")
		slot.Release()
		after(20 * time.Millisecond) // the second check in a row comes a little later
		require.False(t, reg.Agents()[0].Healthy, "one check is enough when a request was refused")
		require.Less(t, time.Since(begin), steadyPoll)
	})
}

func TestSilentEngineKeepsItsAgentRegistered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		n.health.Store(http.StatusOK)
		n.run(n.config())
		after(10 * protocol.DefaultLiveness)
		require.Equal(t, 1, reg.Serving(llama), "heartbeats are sent")
		require.WithinDuration(t, time.Now(), reg.Agents()[0].LastSeen, protocol.DefaultLiveness/3)
	})
}

func TestAgentComesBackWithinTwoSecondsOfTheRouter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.health.Store(http.StatusOK)
		n.run(n.config())
		after(time.Minute)
		reg, srv := n.router(nil, "127.0.0.1:9002")
		after(maxLinkBackoff)
		require.Equal(t, 1, reg.Serving(llama))
		srv.Stop()
		after(time.Minute)
		reg, _ = n.router(nil, "127.0.0.1:9002")
		after(maxLinkBackoff)
		require.Equal(t, 1, reg.Serving(llama))
	})
}

func TestDrainingRouterIsLeftForAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		one, _ := n.router(nil, "127.0.0.1:9002")
		two, _ := n.router(nil, "127.0.0.2:9002")
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cfg.Routers = append(cfg.Routers, "127.0.0.2:9002")
		n.run(cfg)
		after(time.Second)
		require.Equal(t, 1, one.Serving(llama))
		one.Drain()
		after(10 * time.Second)
		require.Zero(t, one.Serving(llama))
		require.Equal(t, 1, two.Serving(llama))
	})
}

// A router that another process replaces keeps its stream, also when the engine gets another
// address. The other process has a stream as well, and the only one afterwards.
func TestARouterAndItsSuccessorBothHaveTheAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		const at = "127.0.0.1:9002"
		before, _ := n.router(nil, at)
		n.health.Store(http.StatusOK)
		cfg := n.config()
		n.run(cfg)
		after(time.Second)
		for range 3 {
			next, _ := n.router(nil, at)
			require.Equal(t, []string{cfg.ID}, before.Succeed())
			require.Equal(t, []string{cfg.ID}, before.Succeed(), "it is told once more, and connects no second time")
			after(time.Second)
			require.Equal(t, []int{1, 1}, []int{before.Serving(llama), next.Serving(llama)})
			after(time.Minute)
			require.Equal(t, []int{1, 1}, []int{before.Serving(llama), next.Serving(llama)})
			before.Drain()
			joined := next.Agents()[0].Joined
			after(time.Minute)
			require.Equal(t, []int{0, 1}, []int{before.Serving(llama), next.Serving(llama)})
			require.Equal(t, joined, next.Agents()[0].Joined)
			before = next
		}
	})
}

func TestTwoAddressesOfOneRouterDoNotFight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002", "[::1]:9002")
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cfg.Routers = append(cfg.Routers, "[::1]:9002")
		n.run(cfg)
		after(10 * time.Second)
		joined := reg.Agents()[0].Joined
		after(time.Hour)
		require.Equal(t, joined, reg.Agents()[0].Joined, "the connection is not replaced any more")
	})
}

func TestRejectedAgentEndsWithTheReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.router(nil, "127.0.0.1:9002")
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cfg.BackendURL = "http://192.0.2.1:8000"
		err := Run(t.Context(), cfg)
		var rejected *RejectedError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, "address_not_allowed", rejected.Code)
		require.ErrorContains(t, err, "router 127.0.0.1:9002 rejects this agent: address_not_allowed: address: 192.0.2.1 is not where the agent connects from (127.0.0.1)")
	})
}

func TestSupersededAgentEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		n.health.Store(http.StatusOK)
		end := n.run(n.config())
		after(time.Second)
		n.run(n.config())
		after(time.Second)
		var rejected *RejectedError
		require.ErrorAs(t, end(), &rejected)
		require.Equal(t, "superseded", rejected.Code)
		require.Equal(t, 1, reg.Serving(llama))
	})
}

func token(s string) func() (string, error) {
	return func() (string, error) { return s, nil }
}

func TestTokenIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		auth := agentreg.TokenAuth(func() []string { return []string{"secret"} })
		reg, _ := n.router([]grpc.ServerOption{grpc.StreamInterceptor(auth)}, "127.0.0.1:9002")
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cfg.ID, cfg.Token = "wrong", token("guess")
		n.run(cfg)
		after(10 * time.Second)
		require.Empty(t, reg.Agents())
		cfg.ID, cfg.Token = "right", token("secret")
		n.run(cfg)
		after(time.Second)
		require.Equal(t, "right", reg.Agents()[0].ID)
	})
}

func TestRunRefusesARouterElsewhere(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	cfg := n.config()
	cfg.Routers = []string{"10.0.0.1:9002"}
	require.EqualError(t, Run(t.Context(), cfg),
		"agent: --router: 10.0.0.1 is not on this machine: without --tls or --tls-ca-file only loopback addresses and unix sockets are allowed")
}

func TestWrongRouterIsNoticedBeforeTheEngineIsReady(t *testing.T) {
	t.Parallel()
	for name, router := range map[string]string{
		"address": freeAddress(t), "socket": "unix://" + t.TempDir() + "/none.sock", "name": "no.such.host.invalid:9002",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, Config{
				Routers: []string{router}, ID: "a", Engine: engines.Custom, BackendURL: "http://" + freeAddress(t), Slots: 1, TLS: TLS{On: name == "name"},
			})
			require.NotEmpty(t, a.await("no router answers: is --router right?").Error)
			a.stop(t)
		})
	}
}
