// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/wake"
)

const oneBackend = `backends:
- {name: gpu, url: "http://192.0.2.1:8000", models: [m, n], max_wait: 20s, slots: 2, api_key_file: KEY,
   wake: {url: "http://127.0.0.1:1/gpu", cooldown: 1h}}
`

const backendKey = "sk-of-the-backend"

// elsewhere is the transport to a backend, and what the backend answers.
type elsewhere struct {
	up    atomic.Bool
	asked atomic.Int64
	key   atomic.Value
	slow  atomic.Pointer[chan struct{}] // closed when the answer may come; nil: at once
	dead  sync.Map                      // hosts that do not answer
}

// down sets whether one host is down while others are up.
func (e *elsewhere) down(host string, down bool) {
	e.dead.Delete(host)
	if down {
		e.dead.Store(host, true)
	}
}

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	e.asked.Add(1)
	e.key.Store(r.Header.Get("Authorization"))
	if slow := e.slow.Load(); slow != nil {
		<-*slow
	}
	if _, dead := e.dead.Load(r.URL.Host); dead || !e.up.Load() {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// backed runs f with an app that has the backends of a configuration, and no map.
func backed(t *testing.T, text string, f func(r *rig, e *elsewhere), flags ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{App: backedApp(t, text, append([]string{"--agent-liveness=24h"}, flags...)...), t: t}
		r.envoys, r.agents = grpctest.Serve(t, r.App.envoy, grpctest.Unix), grpctest.Serve(t, r.App.agents, grpctest.Unix)
		background, end := context.WithCancel(t.Context())
		go r.notifiers.run(background)
		e := &elsewhere{}
		visited := make(chan struct{})
		go func() {
			defer close(visited)
			r.runBackends(background, &http.Client{Transport: e})
		}()
		synctest.Wait()
		f(r, e)
		synctest.Wait()
		require.Zero(t, r.InFlight())
		_, _ = r.envoys.Close(), r.agents.Close()
		r.App.envoy.Stop()
		r.notifiers.stop(t.Context())
		end()
		<-visited
		require.Empty(t, r.registry.Agents())
		r.App.agents.Stop()
		require.NoError(t, r.audit.Close())
	})
}

func backedApp(t *testing.T, text string, flags ...string) *App {
	t.Helper()
	dir := t.TempDir()
	key, path := filepath.Join(dir, "KEY"), filepath.Join(dir, "serve.yaml")
	require.NoError(t, os.WriteFile(key, []byte(backendKey), 0o600))
	c := &config.Serve{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(t, set.Parse(flags))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, c.ReadFile(path, set))
	for i := range c.Backends {
		if c.Backends[i].APIKeyFile != "" {
			c.Backends[i].APIKeyFile = key
		}
	}
	require.NoError(t, c.Validate())
	a, err := New(c, zerolog.Nop())
	require.NoError(t, err)
	return a
}

// state returns the state of a model in GET /v1/models.
func (r *rig) state(model string) string {
	r.t.Helper()
	var e struct{ State string }
	body := calls(r.t, r.App, "").Models(model)
	require.NoError(r.t, json.Unmarshal(body, &e), model)
	return e.State
}

// A backend needs neither a map nor the name of the site.
func TestABackendsModelIsHeldServedAndLeftAlone(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"without a site": nil, "without a map": {"--site-id=here"}} {
		backed(t, oneBackend, func(r *rig, e *elsewhere) {
			pass(time.Hour)
			require.Zero(r.t, e.asked.Load(), name)
			require.Equal(r.t, "asleep", r.state("m"))
			require.Zero(r.t, r.demand("m")+r.wanted("m"))

			one := r.chat("m", off...)
			require.Empty(r.t, one.all())
			require.Equal(r.t, "waking", r.state("m"))
			require.Equal(r.t, "asleep", r.state("n"))
			require.Equal(r.t, 1, r.demand("m"))
			require.Equal(r.t, 1, r.wanted("m"))
			require.EqualValues(r.t, 1, e.asked.Load(), "at once")
			require.Equal(r.t, "Bearer "+backendKey, e.key.Load())
			require.Equal(r.t, "backend/gpu", r.status().Agents[0].ID)
			require.Equal(r.t, "asleep", r.status().Agents[0].State)
			pass(10 * time.Second)
			e.up.Store(true)
			pass(100 * time.Millisecond)
			require.Contains(r.t, one.all(), "10.1s serve on 192.0.2.1:8000")
			require.Equal(r.t, "warm", r.state("n"))
			require.Equal(r.t, 1, r.holds("released"))
			one.gone()
			r.envoyEnds()

			pass(wake.DefaultWindow)
			require.Equal(r.t, "asleep", r.state("m"))
			asked := e.asked.Load()
			pass(time.Hour)
			require.Equal(r.t, asked, e.asked.Load(), "nobody uses it")
			again := r.chat("m", off...)
			require.Contains(r.t, again.all(), "0s serve on 192.0.2.1:8000")
			require.Equal(r.t, 1, r.count("hivenet_wake_seconds", "m"), "that was no wake")
			again.gone()
			pass(time.Second)
			r.envoyEnds()
		}, flags...)
	}
}

func TestAWaitForABackendEndsAfterItsMaxWait(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		one := r.chat("m", off...)
		other := r.chat("unknown", off...)
		require.Contains(r.t, other.all(), "404")
		require.Contains(r.t, r.post("/v1/embeddings", `{"model":"m","input":"x"}`).all(), "404", "it is for chat alone")
		pass(20 * time.Second)
		require.Contains(r.t, one.all(), "20s 503")
		pass(time.Minute) // the linger and a last try
		asked := e.asked.Load()
		pass(time.Hour)
		require.Equal(r.t, asked, e.asked.Load(), "wanted no more")
	})
}

// KEDA, POST /v1/wake and the metrics know the models of backends.
func TestABackendsModelIsKnownToAllWhoWake(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		keda := kedaModels{r.notifiers}
		require.True(r.t, keda.Known("m", ""))
		require.True(r.t, keda.Known("m", "chat"))
		require.False(r.t, keda.Known("m", "rerank"))
		require.False(r.t, keda.Known("unknown", ""))
		require.ErrorIs(r.t, r.wakeModel("unknown", time.Minute), admin.ErrUnknownModel)

		require.NoError(r.t, r.wakeModel("n", time.Minute))
		synctest.Wait()
		require.True(r.t, keda.Active("n", time.Minute))
		require.Positive(r.t, e.asked.Load())
		require.Equal(r.t, 1, r.wanted("n"))
		e.up.Store(true)
		pass(time.Second)
		require.Equal(r.t, "warm", r.state("n"))
		pass(time.Hour)
		require.Equal(r.t, "asleep", r.state("n"))
	})
}

// A field of a target in the map overrides that of a backend, which supplies those that the
// map lacks.
func TestTheMapAndABackendMayHaveTheSameModel(t *testing.T) {
	t.Parallel()
	a := backedApp(t, oneBackend, "--site-id=here")
	at := func(model string) target.Target { return target.Target{Model: model, Kind: target.Chat} }
	push := func(text string) {
		_, err := a.maps.Push([]byte(text), true)
		require.NoError(t, err)
	}
	push(`{"placements":[
		{"model":"m","kind":"chat","site":"here","scale_from_zero":true,"hold_budget":"1h","wake":{"url":"http://127.0.0.1:1/map"}},
		{"model":"n","kind":"chat","site":"here"},
		{"model":"mine","kind":"chat","site":"here","scale_from_zero":true},
		{"model":"fixed","kind":"chat","site":"here"}]}`)
	p := a.placements()
	require.Equal(t, []string{"m", "mine", "n"}, p.Held())
	require.Equal(t, []string{"fixed", "m", "mine", "n"}, p.Models())
	m, _ := p.Here(at("m"))
	require.Equal(t, time.Hour, m.HoldBudget)
	require.Equal(t, "http://127.0.0.1:1/map", p.MapWake(at("m")).URL)
	n, _ := p.Here(at("n"))
	require.Equal(t, 20*time.Second, n.HoldBudget)
	require.True(t, n.ScaleFromZero, "it may be asleep, whatever the map says")
	require.Equal(t, []string{"n"}, a.notifiers.hooks.Load().all["backend gpu"].Models)
	require.False(t, p.Holdable(at("fixed")))

	push(`{"placements":[]}`)
	require.Equal(t, []string{"m", "n"}, a.placements().Held())
}

// The key of a backend is for it alone, whatever else serves its model.
func TestTheKeyOfABackendGoesToNobodyElse(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		e.up.Store(true)
		keyOf := func(address string) string {
			one := r.chat("m", append([]string{"authorization", "Bearer callers"}, off...)...)
			require.Contains(r.t, one.all(), "serve on "+address)
			one.gone()
			return one.sent("authorization")
		}
		require.Equal(r.t, "Bearer "+backendKey, keyOf("192.0.2.1:8000"))
		p := r.join(pb.State_STATE_SERVING, "m")
		require.Empty(r.t, keyOf("127.0.0.1:8000"), "the caller's own is not touched")
		p.leave()
		pass(time.Second)
		r.envoyEnds()
	})
}

// Ollama answers 403 to a host or an origin that it does not know.
func TestOllamaGetsItsOwnAddressAsTheHostAndNoOrigin(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		p := r.joinAs("a", pb.State_STATE_SERVING, func(h *pb.Hello) { h.Engine = engines.Ollama }, "m")
		one := r.chat("m", "origin", "https://page.example")
		require.Contains(r.t, one.all(), "serve on 127.0.0.1:8000")
		require.Equal(r.t, "127.0.0.1:8000", one.sent(":authority"))
		require.Equal(r.t, []string{"origin"}, one.taken())
		one.gone()
		pass(time.Second)
		r.envoyEnds()
		p.leave()
		synctest.Wait()
	})
}

// A backend gets the host of its URL, whatever host the client sent.
func TestABackendGetsItsOwnHost(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		e.up.Store(true)
		one := r.chat("m", off...)
		require.Contains(r.t, one.all(), "serve on 192.0.2.1:8000")
		require.Equal(r.t, "192.0.2.1:8000", one.sent(":authority"))
		one.gone()
		pass(time.Second)
		r.envoyEnds()
	})
}

func (r *rig) explain(q admin.ExplainQuery) *admin.Explanation {
	r.t.Helper()
	e, err := r.decider.Explain(q)
	require.NoError(r.t, err)
	return e
}

func TestExplainKnowsBackends(t *testing.T) {
	t.Parallel()
	backed(t, oneBackend, func(r *rig, e *elsewhere) {
		of := func() *admin.Explanation { return r.explain(admin.ExplainQuery{Model: "m", Kind: target.Chat}) }
		x := of()
		require.Equal(r.t, admin.DecisionHold, x.Decision)
		require.Equal(r.t, "20s", x.HoldBudget)
		require.Contains(r.t, x.Steps[4].Why, "a backend of this router needs none")
		require.Contains(r.t, x.Steps[6].Why, "a backend of this router has the model")
		require.Equal(r.t, 404, r.explain(admin.ExplainQuery{Model: "unknown", Kind: target.Chat}).Status)
		e.up.Store(true)
		require.NoError(r.t, r.wakeModel("m", time.Minute))
		synctest.Wait()
		require.Equal(r.t, admin.DecisionServe, of().Decision)
	})
}

func TestABackendsKeyFileIsReadAtTheStart(t *testing.T) {
	t.Parallel()
	c := &config.Serve{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(t, c.ReadFile(temporary(t, "backends:\n- {name: b, url: 'http://h', models: [m], api_key_file: sk-pasted}"), set))
	const want = "--config: backends[0].api_key_file: must name a file with the key: no such file or directory (line 2)"
	_, err := New(c, zerolog.Nop())
	require.EqualError(t, err, want)
	require.EqualError(t, Check(c), want)

	c.Backends[0].APIKeyFile = temporary(t, "a key\n")
	require.ErrorContains(t, Check(c), "must name a file that contains only the key")
	c.Backends[0].APIKeyFile = ""
	c.PolicyFile = temporary(t, "models: {other: {aliases: [m]}}")
	require.ErrorContains(t, Check(c), "m is a model of the map or of a backend")
}
