// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

func chat(model string) target.Target { return target.Target{Model: model, Kind: target.Chat} }

func TestSeveralBackendsMayHaveOneModel(t *testing.T) {
	t.Parallel()
	s, err := New([]Config{
		{Name: "a", Engine: "vllm", Models: []string{"m", "n"}, MaxWait: time.Minute},
		{Name: "b", Engine: "vllm", Models: []string{"m"}, MaxWait: time.Hour},
		{Name: "c", Engine: "tei", Models: []string{"m", "e"}},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"e", "m", "n"}, s.Models())
	p, ok := s.Here(chat("m"))
	require.True(t, ok)
	require.Equal(t, sitemap.Placement{Target: chat("m"), ScaleFromZero: true, HoldBudget: time.Hour}, p)
	require.Equal(t, []target.Target{chat("m"), chat("n")}, s.All()[0].Targets())
	_, ok = s.Here(chat("e"))
	require.False(t, ok, "tei embeds")
	p, ok = s.Here(target.Target{Model: "m", Kind: target.Embedding})
	require.True(t, ok)
	require.Zero(t, p.HoldBudget, "the router's default")
}

func TestNoBackendsAreNothing(t *testing.T) {
	t.Parallel()
	s, err := New(nil)
	require.NoError(t, err)
	s.Run(t.Context(), Options{})
	s.Changed("m")
	require.Empty(t, s.Models())
	_, own := s.Upstream("backend/a")
	require.False(t, own)
}

func TestABackendWantsItsRequestsInItsWay(t *testing.T) {
	t.Parallel()
	authority := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(authority.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw}), 0o600))
	s, err := New([]Config{
		{Name: "plain", BackendURL: "http://gpu:8000", Engine: "vllm"},
		{Name: "api", BackendURL: "https://llm.example/serve/m/", Engine: "vllm", NotTaken: []int{503, 502}},
		{Name: "own", BackendURL: "https://10.0.0.1:8443", Engine: "vllm", Host: "llm.example:80", SNI: "inside.example", CAFile: ca},
		{Name: "six", BackendURL: "https://[2001:db8::1]", Engine: "vllm"},
	})
	require.NoError(t, err)
	for id, want := range map[string]Upstream{
		"backend/plain": {Host: "gpu:8000"},
		"backend/api#7": {Host: "llm.example", Prefix: "/serve/m", CAFile: "system", NotTaken: "503,502"},
		"backend/own":   {Host: "llm.example:80", CAFile: ca, SNI: "inside.example"},
		"backend/six":   {Host: "[2001:db8::1]", CAFile: "system"},
	} {
		w, own := s.Upstream(id)
		require.True(t, own, id)
		require.Equal(t, want, *w, id)
	}
	require.Nil(t, s.all[0].tls)
	require.Equal(t, "llm.example", s.all[1].tls.ServerName)
	require.Nil(t, s.all[1].tls.RootCAs)
	require.Equal(t, "inside.example", s.all[2].tls.ServerName)
	require.NotNil(t, s.all[2].tls.RootCAs)
	require.Equal(t, "2001:db8::1", s.all[3].tls.ServerName)

	_, err = New([]Config{{Name: "a", BackendURL: "https://h", Engine: "vllm", CAFile: "/nope.pem", caLine: 7}})
	require.ErrorContains(t, err, "--config: backends[0].ca_file: ")
	require.ErrorContains(t, err, "(line 7)")
}

func never(string) bool { return false }

// Whoever could not wake a model in one way waits for the question whether a backend
// of it is up: of all backends, and of the first question.
func TestAModelIsGivenUpWhenNoBackendAnswers(t *testing.T) {
	t.Parallel()
	s, err := New([]Config{{Name: "a", Engine: "vllm", Models: []string{"m"}}, {Name: "b", Engine: "vllm", Models: []string{"m"}}})
	require.NoError(t, err)
	one, two := &s.all[0].health, &s.all[1].health
	failed := 0
	fail := func() { failed++ }
	s.UnlessUp("m", fail)
	one.begin()
	two.begin()
	require.False(t, s.AllFailing(chat("m")))
	require.True(t, one.end(http.ErrHandlerTimeout))
	require.Zero(t, failed, "the other one may be up")
	require.True(t, two.end(http.ErrHandlerTimeout))
	require.Equal(t, 1, failed)
	require.True(t, s.AllFailing(chat("m")))

	s.UnlessUp("m", fail)
	require.Equal(t, 2, failed, "both have failed")
	two.begin()
	s.UnlessUp("m", fail)
	require.True(t, two.end(nil))
	s.UnlessUp("m", fail)
	require.Equal(t, 2, failed, "it is up")
	require.False(t, two.reset())
	s.UnlessUp("m", fail)
	two.reset()
	two.end(http.ErrHandlerTimeout)
	require.Equal(t, 2, failed, "what was wanted no more is not given up later")
}

// A backend that was not told its models is asked for them, with its key; then they
// may be held.
func TestABackendNamesItsModels(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("secret\n"), 0o600))
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
	}))
	t.Cleanup(engine.Close)
	s, err := New([]Config{{Name: "a", BackendURL: engine.URL, Engine: "custom", Slots: 3, APIKeyFile: key}})
	require.NoError(t, err)
	require.Empty(t, s.Models())
	w, own := s.Upstream("backend/a")
	require.True(t, own)
	require.Equal(t, Upstream{Key: "secret", Host: engine.Listener.Addr().String()}, *w)
	_, own = s.Upstream("a")
	require.False(t, own)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	named, served := make(chan []string, 1), make(chan *agentreg.AgentInfo, 1)
	registry := agentreg.New(agentreg.Options{OnServing: func(a *agentreg.AgentInfo) { served <- a }})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx, Options{
			Registry: registry, Wanted: never, Used: never, OnHealth: func(string) {}, Log: zerolog.Nop(),
			OnModels: func() { named <- s.Models() },
		})
	}()
	require.Equal(t, []string{"m"}, <-named)
	a := <-served
	require.Equal(t, "backend/a", a.ID)
	require.Equal(t, engine.Listener.Addr().String(), a.Address)
	p, ok := s.Here(chat("m"))
	require.True(t, ok)
	require.True(t, p.ScaleFromZero)
	cancel()
	<-ended
	require.Empty(t, registry.Agents())
}
