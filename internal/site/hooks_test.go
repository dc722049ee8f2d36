// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/site"
	"github.com/holdgate/holdgate/internal/wake"
)

// platform is what hooks call. It answers with a status, and counts.
type platform struct {
	*httptest.Server

	mu       sync.Mutex
	status   int
	calls    []time.Time
	keys     []string // the Idempotency-Key of each call
	failures []string // that the routers were told
}

func newPlatform(t *testing.T, status int) *platform {
	t.Helper()
	p := &platform{status: status}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.calls, p.keys = append(p.calls, time.Now()), append(p.keys, r.Header.Get("Idempotency-Key"))
		w.WriteHeader(p.status)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *platform) called() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.calls)
}

// router returns the webhooks of a router, with a hook of the platform that is called once per
// cooldown.
func (p *platform) router(t *testing.T, c *shared.Client, cooldown time.Duration) *wake.Webhooks {
	t.Helper()
	w := wake.NewWebhooks(wake.WebhookOptions{
		Demand: func(string) int { return 1 },
		OnFailed: func(_, reason string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.failures = append(p.failures, reason)
		},
		Claims: site.NewHooks(c), Registerer: prometheus.NewRegistry(), Prefix: "hivenet_", Log: zerolog.Nop(),
	})
	t.Cleanup(func() { w.Stop(t.Context()) })
	w.Replace(map[string]wake.Hook{"llama": {URL: p.URL + "/wake?token=secret", Cooldown: cooldown}})
	return w
}

// threeWant has three routers want the model.
func (p *platform) threeWant(t *testing.T, server *valkeytest.Server, cooldown time.Duration) (clients []*shared.Client) {
	t.Helper()
	for range 3 {
		c := server.Router(nil)
		clients = append(clients, c)
		p.router(t, c, cooldown).Wanted("llama", true, false)
	}
	return clients
}

func TestThreeRoutersCallAHookOncePerCooldown(t *testing.T) {
	for name, status := range map[string]int{"202": http.StatusAccepted, "409, it is being woken already": http.StatusConflict} {
		t.Run(name, func(t *testing.T) {
			p := newPlatform(t, status)
			const cooldown = 500 * time.Millisecond
			p.threeWant(t, valkeytest.Start(t), cooldown)
			polltest.Until(t, "it is called six times", func() bool { return p.called() == 6 })
			p.mu.Lock()
			defer p.mu.Unlock()
			for i, at := range p.calls[1:] {
				require.Greater(t, at.Sub(p.calls[i]), cooldown-50*time.Millisecond)
			}
			require.Empty(t, p.failures)
		})
	}
}

func TestARefusedHookFailsTheWakeAtAllRouters(t *testing.T) {
	p := newPlatform(t, http.StatusNotFound)
	p.threeWant(t, valkeytest.Start(t), time.Minute)
	polltest.Until(t, "all routers know", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.failures) == 3
	})
	require.Equal(t, 1, p.called())
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, reason := range p.failures {
		require.Equal(t, "its wake hook answered 404", reason)
	}
}

// A router dies during its call: another one calls when the claim is over, with the same key.
func TestAnotherRouterCallsForOneThatDied(t *testing.T) {
	p := newPlatform(t, http.StatusAccepted)
	server := valkeytest.Start(t)
	dead := site.NewHooks(server.Router(nil))
	claim, err := dead.Claim(t.Context(), "llama\x00POST\x00"+p.URL+"/wake?token=secret", "the key", 2*time.Second)
	require.NoError(t, err)
	require.Equal(t, wake.Claim{Mine: true, Key: "the key"}, claim)
	begin := time.Now()
	p.threeWant(t, server, time.Minute)
	polltest.Until(t, "it is called", func() bool { return p.called() > 0 })
	require.Greater(t, time.Since(begin), 1500*time.Millisecond)
	require.Equal(t, []string{"the key"}, p.keys)
}

// Without the server each router calls the hook once per cooldown; one that has known the claim
// of another waits for its end.
func TestWithoutAServerEachRouterCallsAHookOnce(t *testing.T) {
	p := newPlatform(t, http.StatusAccepted)
	server := valkeytest.Start(t)
	clients := []*shared.Client{server.Router(nil), server.Router(nil), server.Router(nil)}
	server.Stop()
	for _, c := range clients {
		p.router(t, c, time.Minute).Wanted("llama", true, false)
	}
	polltest.Until(t, "each has called", func() bool { return p.called() == 3 })
	server.Restart()
	for _, c := range clients {
		polltest.Until(t, "the server is back", c.Up)
	}
	require.Equal(t, 3, p.called())
}

func TestTheClaimOfAHookHasOneRouter(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := site.NewHooks(server.Router(nil)), site.NewHooks(server.Router(nil))
	ask := func(h *site.Hooks, key string) wake.Claim {
		claim, err := h.Claim(t.Context(), "hook", key, time.Minute)
		require.NoError(t, err)
		claim.Ends, claim.End.Lasts = claim.Ends.Round(10*time.Second), 0
		return claim
	}
	mine := func(key string) wake.Claim { return wake.Claim{Mine: true, Key: key} }
	require.Equal(t, mine("1"), ask(one, "1"))
	require.Equal(t, wake.Claim{Ends: time.Minute}, ask(two, "2"), "the call runs")

	one.End(t.Context(), "hook", wake.CallEnd{Lasts: 20 * time.Second})
	require.Equal(t, wake.Claim{Ends: 20 * time.Second}, ask(two, "2"), "the call failed")
	two.Release(t.Context(), "hook")
	two.End(t.Context(), "hook", wake.CallEnd{Done: true, Lasts: time.Hour})
	require.Equal(t, mine("1"), ask(one, "3"), "it tries again")
	one.Release(t.Context(), "hook")
	require.Equal(t, wake.Claim{Ends: time.Minute}, ask(two, "2"), "a claim is not given up during the call")
	one.End(t.Context(), "hook", wake.CallEnd{Lasts: 20 * time.Second})
	one.Release(t.Context(), "hook")
	require.Equal(t, mine("1"), ask(two, "2"), "it was given up")

	two.End(t.Context(), "hook", wake.CallEnd{Done: true, Lasts: 30 * time.Second})
	done := wake.Claim{Ends: 30 * time.Second, End: wake.CallEnd{Done: true}}
	require.Equal(t, done, ask(one, "1"))
	require.Equal(t, done, ask(two, "2"), "also for the router that called")
	two.End(t.Context(), "hook", wake.CallEnd{Done: true, Refused: "no"})
	require.Equal(t, mine("4"), ask(one, "4"), "the cooldown is over: the key is new")
}
