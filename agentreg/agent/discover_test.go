// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/agent/engines/enginestest"
)

// beside is an agent whose engine is a fake over real HTTP.
func beside(t *testing.T, f *fake, edit func(*Config)) *agent {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	cfg := newNetwork(t).config()
	cfg.BackendURL, cfg.HTTPClient, cfg.Models, cfg.Kinds = server.URL, nil, nil, nil
	edit(&cfg)
	require.NoError(t, cfg.Validate())
	a, err := newAgent(t.Context(), cfg.withDefaults())
	require.NoError(t, err)
	return a
}

func as(engine string) func(*Config) { return func(c *Config) { c.Engine = engine } }

func TestEachEngineIsHealthyAndNamesItsModels(t *testing.T) {
	t.Parallel()
	want := map[string]struct{ models, kinds []string }{
		engines.VLLM:     {[]string{"llama", "sql-lora"}, []string{"chat"}},
		engines.SGLang:   {[]string{"llama"}, []string{"chat"}},
		engines.Ollama:   {[]string{"llama"}, []string{"chat"}},
		engines.LlamaCpp: {[]string{"llama"}, []string{"chat"}},
		engines.Infinity: {[]string{"bge"}, []string{"embedding"}},
		engines.TEI:      {[]string{"thenlper/gte-base"}, []string{"embedding"}},
		engines.Custom:   {[]string{"llama"}, []string{"chat"}},
	}
	require.Len(t, want, len(strings.Split(engines.Names(), ", ")))
	for engine, w := range want {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			a := beside(t, newFake(engine), as(engine))
			require.NoError(t, a.health.check(t.Context()))
			require.NoError(t, a.discover(t.Context()))
			hello := a.core.addSession(&session{changed: make(chan struct{}, 1)}).GetHello()
			require.Equal(t, w.models, hello.GetModels())
			require.Equal(t, w.kinds, hello.GetKinds())
		})
	}
}

func TestRerankerOfTEIIsRegisteredAsOne(t *testing.T) {
	t.Parallel()
	f := &fake{get: map[string]string{"/info": `{"model_id":"bge-reranker","model_type":{"reranker":{"id2label":{"0":"LABEL_0"},"label2id":{"LABEL_0":0}}}}`}}
	a := beside(t, f, as(engines.TEI))
	require.NoError(t, a.discover(t.Context()))
	require.Equal(t, []string{"rerank"}, a.cfg.Kinds)
}

func TestInfinityBelowAPrefixNamesItsModels(t *testing.T) {
	t.Parallel()
	f := &fake{get: map[string]string{"/v1/models": enginestest.Answers[engines.Infinity]["/models"]}}
	a := beside(t, f, func(c *Config) { c.Engine, c.Kinds = engines.Infinity, []string{"reranker"} })
	require.NoError(t, a.discover(t.Context()))
	require.Equal(t, []string{"ranker"}, a.cfg.Models)
	require.EqualValues(t, 2, *a.readSignals(t.Context()).Waiting)
}

func TestDiscoverySaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ models, want string }{
		"no such path":     {"", `/v1/models answers 404 Not Found`},
		"no JSON":          {"<html>", "reading /v1/models"},
		"no model":         {`{"data":[]}`, "the engine has none that fits: name them with --model"},
		"no name that can": {`{"data":[{"id":""}]}`, "the engine has none that fits: name them with --model"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{get: map[string]string{}}
			if tc.models != "" {
				f.get["/v1/models"] = tc.models
			}
			require.ErrorContains(t, beside(t, f, as(engines.VLLM)).discover(t.Context()), tc.want)
		})
	}
}
