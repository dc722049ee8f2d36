// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
)

func TestWarmUpIsForEnginesThatNeedItAndWhoeverAsksForIt(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		engine, kind string
		flag         *bool
		want         int64
	}{
		"ollama":                  {engines.Ollama, "llm", nil, 1},
		"ollama for embeddings":   {engines.Ollama, "embedding", nil, 0},
		"ollama without":          {engines.Ollama, "llm", new(false), 0},
		"sglang":                  {engines.SGLang, "llm", nil, 1},
		"vllm":                    {engines.VLLM, "llm", nil, 0},
		"vllm with":               {engines.VLLM, "llm", new(true), 1},
		"sglang of the usual":     {engines.SGLang, "", nil, 1},
		"ollama by another name":  {engines.Ollama, "chat", nil, 1},
		"llamacpp without a need": {engines.LlamaCpp, "llm", new(false), 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(tc.engine)
			a := beside(t, f, func(c *Config) {
				c.Engine, c.Models, c.Warmup = tc.engine, []string{"llama", "other"}, tc.flag
				if tc.kind != "" {
					c.Kinds = []string{tc.kind}
				}
			})
			require.NoError(t, a.makeReady(t.Context()))
			require.Equal(t, tc.want, f.completions.Load())
			if tc.want > 0 {
				require.JSONEq(t, `{"model":"llama","messages":[{"role":"user","content":"Hi"}],"max_tokens":1}`, f.last.Load().(string))
			}
		})
	}
}

func TestAgentRegistersAfterTheWarmUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		f := newFake(engines.Ollama)
		f.refused.Store(3)
		n.engine = f
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cfg.Engine, cfg.Models, cfg.Kinds = engines.Ollama, nil, nil
		n.run(cfg)
		after(3*retryEvery - time.Millisecond)
		require.Empty(t, reg.Agents())
		after(2 * time.Millisecond)
		require.Equal(t, 1, reg.Serving(llama))
		require.EqualValues(t, 4, f.completions.Load())
	})
}

func TestWarmUpThatNeverWorksEndsTheAgentWithTheReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		f := newFake(engines.Ollama)
		f.refusal = `{"error":{"message":"model 'llama' not found"}}`
		f.refused.Store(1 << 40)
		n.engine = f
		cfg := n.config()
		cfg.Engine, cfg.WakeTimeout = engines.Ollama, time.Minute
		begin := time.Now()
		time.AfterFunc(time.Hour, func() { n.health.Store(http.StatusOK) }) // this wait has no end
		err := Run(t.Context(), cfg)
		require.EqualError(t, err, "agent: the engine is healthy, but was not ready within 1m0s: warming up: "+
			"http://127.0.0.1:8000/v1/chat/completions answers 503 Service Unavailable: `{\"error\":{\"message\":\"model 'llama' not found\"}}`")
		require.InDelta(t, (time.Hour + time.Minute).Seconds(), time.Since(begin).Seconds(), 2)
	})
}

func TestWarmUpThatHangsIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.engine = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				<-r.Context().Done()
			}
		})
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cfg.Engine = engines.SGLang
		require.ErrorContains(t, Run(t.Context(), cfg), "was not ready within 5m0s: warming up: ")
	})
}

func TestAgentMayEndDuringTheWarmUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.engine = &fake{get: map[string]string{"/health": ""}}
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cfg.Models = nil
		end := n.run(cfg)
		after(time.Second)
		require.NoError(t, end())
	})
}

func TestWokenEngineServesAfterTheWarmUp(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "cold")
	cfg.Warmup = new(true)
	a := start(t, cfg)
	r.await("agent registered")
	r.SetWanted("llama", true)
	require.Regexp(t, "^warming up: .* answers 503 Service Unavailable: `not loaded`$", a.await("the engine is not ready yet").Error)
	require.Zero(t, r.Serving(llama))
	r.await("ready")
	require.Equal(t, 1, r.Serving(llama))
}

// engineWithoutChat is healthy and has no chat completions.
type engineWithoutChat struct{}

func (engineWithoutChat) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Method == http.MethodPost {
		http.NotFound(w, r)
	}
	return w.Result(), nil
}

func TestWakeFailsWhenTheWarmUpNeverWorks(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "serve")
	// Not the engine itself: that takes as long to be healthy as the machine likes.
	cfg.HTTPClient = &http.Client{Transport: engineWithoutChat{}}
	cfg.Warmup = new(true)
	cfg.WakeTimeout = 400 * time.Millisecond
	start(t, cfg)
	r.SetWanted("llama", true)
	require.Equal(t, "the engine was not ready within 400ms", <-r.failed)
	require.Regexp(t, "^warming up: .* answers 404 Not Found: ", r.WakeDetail("llama"))
	require.Zero(t, enginePid(t, cfg))
}
