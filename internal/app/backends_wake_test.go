// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/wake"
)

func TestABackendHasOneHookForAllItsModels(t *testing.T) {
	t.Parallel()
	a := backedApp(t, oneBackend)
	h := a.notifiers.hooks.Load().all["backend gpu"]
	require.Equal(t, wake.Hook{Models: []string{"m", "n"}, Kind: "chat", URL: "http://127.0.0.1:1/gpu", Method: "POST", Cooldown: time.Hour}, h.Hook)
	require.Equal(t, []string{"backend gpu"}, a.notifiers.hooks.Load().byModel["n"])
}

// hookedUp makes the hooks of r call a transport.
func (r *rig) hookedUp(calls http.RoundTripper) {
	r.notifiers.webhooks = wake.NewWebhooks(wake.WebhookOptions{
		Transport: calls, Registerer: prometheus.NewRegistry(), Log: zerolog.Nop(), Demand: r.machine.Demand, OnFailed: r.notifiers.wakeRefused,
	})
	r.notifiers.placementsChanged()
	synctest.Wait()
}

// refuses is the transport of hooks that answer 403, all of them or those of one path.
type refuses struct {
	called

	path string
}

func (h *refuses) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.called.RoundTrip(r)
	if h.path == "" || h.path == r.URL.Path {
		resp.StatusCode = http.StatusForbidden
	}
	return resp, err
}

// A hook is called for a backend that is not healthy. A healthy one is not woken, and the
// refusal of its hook ends no wait.
func TestTheHookOfABackendThatIsUpIsNotCalled(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		h := &refuses{}
		r.hookedUp(h)
		e.up.Store(true)
		for range 3 {
			one := r.chat("m", off...)
			require.Contains(r.t, one.all(), "0s serve on 192.0.2.1:8000")
			one.gone()
			pass(time.Second)
			r.envoyEnds()
			pass(time.Hour)
		}
		require.Empty(r.t, h.since())
	})
}

// Three models of one backend are woken by one call, whose refusal ends waits when the
// backend is not healthy.
func TestTheHookOfABackendIsCalledOnceAfterItsFirstQuestion(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		h := &called{}
		r.hookedUp(h)
		slow := make(chan struct{})
		e.slow.Store(&slow)
		one, other := r.chat("m", off...), r.chat("n", off...)
		require.Empty(r.t, h.since(), "the question is open")
		close(slow)
		require.Equal(r.t, []string{"/gpu \"kind\":\"chat\""}, h.since())
		pass(15 * time.Second)
		require.Empty(r.t, h.since(), "once per cooldown")
		e.up.Store(true)
		pass(time.Second)
		require.Contains(r.t, one.all(), "serve on")
		require.Contains(r.t, other.all(), "serve on")
		one.gone()
		other.gone()
		r.envoyEnds()
	})
	backed(t, oneBackend, func(r *rig, _ *elsewhere) {
		r.hookedUp(&refuses{})
		one, other := r.chat("m", off...), r.chat("n", off...)
		require.Contains(r.t, one.all(), "its wake hook answered 403")
		require.Contains(r.t, other.all(), "its wake hook answered 403")
	})
}

// A failed wake of one kind ends no wait while the health of a backend is being checked.
func TestNothingFailsWhileAQuestionIsOpen(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		slow := make(chan struct{})
		e.slow.Store(&slow)
		one := r.chat("m", off...)
		r.notifiers.wakeRefused("m", "the agent has no room")
		require.Empty(r.t, one.all())
		e.up.Store(true)
		close(slow)
		require.Contains(r.t, one.all(), "serve on 192.0.2.1:8000")
		one.gone()
		pass(time.Second)
		r.envoyEnds()
	})
}

// A hook that refuses, or an agent that cannot start, ends no wait while another hook is
// waking a backend.
func TestAHookThatRefusesEndsNoWaitForAnotherBackend(t *testing.T) {
	t.Parallel()
	backed(t, twoBackends, func(r *rig, e *elsewhere) {
		e.up.Store(true)
		e.down("192.0.2.1:8000", true)
		e.down("192.0.2.2:8000", true)
		r.hookedUp(&refuses{path: "/own"})
		one := r.chat("m", off...)
		pass(2 * time.Second)
		require.Empty(r.t, one.all())
		r.notifiers.wakeRefused("m", "the engine ended")
		require.Empty(r.t, one.all())
		e.down("192.0.2.2:8000", false)
		pass(time.Second)
		require.Contains(r.t, one.all(), "serve on 192.0.2.2:8000")
		one.gone()
		pass(time.Second)
		r.envoyEnds()
	})
}

func TestTheWaitEndsWhenTheHooksOfAllBackendsRefuse(t *testing.T) {
	t.Parallel()
	backed(t, twoBackends, func(r *rig, _ *elsewhere) {
		r.hookedUp(&refuses{})
		one := r.chat("m", off...)
		require.Contains(r.t, one.all(), "its wake hook answered 403")
		require.Equal(r.t, 1, r.holds("wake_failed"))
	})
}

const twoBackends = `backends:
- {name: own, url: "http://192.0.2.1:8000", models: [m], slots: 4, region: own, wake: {url: "http://127.0.0.1:1/own", cooldown: 30s}}
- {name: cloud, url: "http://192.0.2.2:8000", models: [m], slots: 4, region: cloud, wake: {url: "http://127.0.0.1:1/cloud", cooldown: 30s}}
`

const ownFirst = `models: {m: {steps: [{name: own, match: {region: own}}, {name: any}]}}`

// The backend of the first step of a policy is woken while the second step serves, and gets
// the requests as soon as it is up; the second one is not woken for requests of the first.
func TestAColdPrimaryBesideAWarmFallbackIsWokenAndComesBack(t *testing.T) {
	t.Parallel()
	policy := temporary(t, ownFirst)
	backed(t, twoBackends, func(r *rig, e *elsewhere) {
		h := &called{}
		r.hookedUp(h)
		e.down("192.0.2.1:8000", true)
		e.up.Store(true)
		one := r.chat("m", off...)
		require.Contains(r.t, one.all(), "serve on 192.0.2.2:8000")
		require.Equal(r.t, []string{"/own \"kind\":\"chat\""}, h.since())
		pass(31 * time.Second)
		require.Equal(r.t, []string{"/own \"kind\":\"chat\""}, h.since(), "as long as the model is used")

		e.down("192.0.2.1:8000", false)
		e.down("192.0.2.2:8000", true)
		pass(10 * time.Second)
		h.since()
		for range 18 {
			next := r.chat("m", off...)
			require.Contains(r.t, next.all(), "serve on 192.0.2.1:8000")
			next.gone()
			pass(time.Second)
			r.envoyEnds()
		}
		require.Empty(r.t, h.since(), "the fallback may sleep")
		one.gone()
		r.envoyEnds()
		pass(time.Hour)
		asked := e.asked.Load()
		pass(time.Hour)
		require.Equal(r.t, asked, e.asked.Load())
	}, "--policy-file="+policy)
}
