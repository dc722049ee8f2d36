// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/config"
)

// startWithBackend starts holdgate with a backend and no map, as a user does.
func startWithBackend(t *testing.T, backend string, flags ...string) (s *site, serve *process, admin string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	require.NoError(t, os.WriteFile(path, []byte("log-level: debug\nbackends:\n- "+backend+"\n"), 0o600))
	s, serve, ports := startServe(t, append([]string{"--config", path, "--site-id="}, flags...)...)
	return s, serve, "http://" + ports["admin"]
}

// backendCAs returns the CAs of the backends in the file of --config.
func backendCAs(t *testing.T, flags []string) []string {
	t.Helper()
	i := slices.Index(flags, "--config")
	if i < 0 {
		return nil
	}
	c := &config.Serve{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(t, c.ReadFile(flags[i+1], set))
	return backend.CAs(c.Backends)
}

// get returns an answer of the admin API.
func (s *site) get(url string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(s.t, err)
	return s.do(r).body
}

// TestARealEngineThatStartsAfterTheRequest uses a real llama.cpp. The router has only
// its name and finds it by a lookup.
func TestARealEngineThatStartsAfterTheRequest(t *testing.T) {
	_, port, err := net.SplitHostPort(closedPort(t))
	require.NoError(t, err)
	s, serve, admin := startWithBackend(t, fmt.Sprintf(`{name: tiny, url: "http://localhost:%s", engine: llamacpp, models: [tiny], max_wait: 60s}`, port))
	require.Contains(t, s.get(s.url+"/v1/models/tiny"), `"state":"asleep"`)
	answer := s.start(t.Context(), chatPath, `{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"Hi"}]}`)
	serve.waitLog("connection refused.*the backend is not ready yet")
	require.Contains(t, s.get(admin+"/metrics"), `hivenet_pending_demand{model="tiny"} 1`)
	require.Contains(t, s.get(s.url+"/v1/models/tiny"), `"state":"waking"`)
	startProgram(t, python(t), "tools/llama_server.py", "--port", port, "--alias", "tiny")
	r := <-answer
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Contains(t, r.body, `"object":"chat.completion"`)
	require.Contains(t, s.get(s.url+"/v1/models/tiny"), `"state":"warm"`)
	r = s.post(chatPath, `{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"Hi"}]}`)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Contains(t, s.get(admin+"/v1/status"), `"id":"backend/tiny"`)
}

func TestABackendIsLeftAloneUntilItIsNeeded(t *testing.T) {
	e := newEngine(t, nil)
	at, err := url.Parse(e.URL)
	require.NoError(t, err)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(engineSecret+"\n"), 0o600))
	s, serve, admin := startWithBackend(t, fmt.Sprintf(`{name: b, url: "http://localhost:%s", models: [m], max_wait: 2s, api_key_file: %q}`, at.Port(), key))
	time.Sleep(time.Second)
	require.Zero(t, e.count(), "no request needs it")
	require.Contains(t, s.get(admin+"/v1/status"), `"state":"asleep"`)

	r := s.post(chatPath, chatBody("m", false), "Authorization", "Bearer callers")
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Less(t, r.elapsed, 2*time.Second)
	require.Equal(t, []string{"Bearer " + engineSecret}, keysOf(e))
	require.Equal(t, 2, e.count(), "one question, and the request")
	require.Equal(t, "/health", e.requests[0].URL.Path)
	require.Equal(t, "Bearer "+engineSecret, e.requests[0].Header.Get("Authorization"))
	require.Equal(t, http.StatusNotFound, s.post(chatPath, chatBody("unknown", false)).status)

	// A backend that is gone gets no requests: they wait for it.
	e.CloseClientConnections()
	require.NoError(t, e.Listener.Close())
	r = s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
	require.Contains(t, r.body, "model_waking")
	for _, where := range []string{serve.out.String(), s.get(admin + "/metrics"), s.get(admin + "/v1/status")} {
		require.NotContains(t, where, engineSecret)
	}
}

// A pool behind https with a path of its own. Its requests have the configured host,
// path and key, warm and held. A request that it did not take is served by another
// backend or waits, and nothing of the pool's answer reaches the client.
func TestABackendOfHTTPSThatDoesNotTakeARequest(t *testing.T) {
	var up, taken atomic.Bool
	up.Store(true)
	taken.Store(true)
	seen := make(chan string, 16)
	pool := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/serve/health" && up.Load():
		case r.URL.Path == "/serve"+chatPath && taken.Load():
			seen <- r.Host + " " + r.TLS.ServerName
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"answer":true}`)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "no healthy upstream")
		}
	}))
	pool.StartTLS()
	t.Cleanup(pool.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pool.Certificate().Raw}), 0o600))
	s, serve, _ := startWithBackend(t, fmt.Sprintf(`{name: pool, url: "https://%s/serve", host: "llm.example.com", models: [m], pool: true, ca_file: %q, max_wait: 20s}`,
		pool.Listener.Addr(), ca), "--wake-keepalive", "300ms")
	const want = "llm.example.com llm.example.com"    //nolint:dupword // host and SNI
	for _, keepalive := range []string{"on", "off"} { // relayed, and native after a hold
		r := s.post(chatPath, chatBody("m", false), "x-wake-keepalive", keepalive)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, want, <-seen)
	}
	// It stays healthy for a moment, but takes no request.
	taken.Store(false)
	r := s.start(t.Context(), chatPath, chatBody("m", false))
	serve.waitLog("answered that it did not take the request")
	taken.Store(true)
	answer := <-r
	require.Equal(t, http.StatusOK, answer.status, answer.body)
	require.JSONEq(t, `{"answer":true}`, strings.TrimSpace(answer.body))
	require.Equal(t, want, <-seen)
}
