// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// backed is a holdgate with a backend and no map, as its user starts it.
func backed(t *testing.T, backend string, flags ...string) (s *site, serve *process, admin string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	require.NoError(t, os.WriteFile(path, []byte("log-level: debug\nbackends:\n- "+backend+"\n"), 0o600))
	s, serve, ports := served(t, append([]string{"--config", path, "--site-id="}, flags...)...)
	return s, serve, "http://" + ports["admin"]
}

// get asks the admin API.
func (s *site) get(url string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(s.t, err)
	return s.do(r).body
}

// TestARealEngineThatStartsAfterTheRequest has a real llama.cpp, which is found by a
// name, and of which the router has nothing else.
func TestARealEngineThatStartsAfterTheRequest(t *testing.T) {
	_, port, err := net.SplitHostPort(closedPort(t))
	require.NoError(t, err)
	s, serve, admin := backed(t, fmt.Sprintf(`{name: tiny, url: "http://localhost:%s", engine: llamacpp, models: [tiny], max_wait: 60s}`, port))
	require.Contains(t, s.get(s.url+"/v1/models/tiny"), `"state":"asleep"`)
	answer := s.start(t.Context(), chatPath, `{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"Hi"}]}`)
	serve.says("connection refused.*the backend is not ready yet")
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
	s, serve, admin := backed(t, fmt.Sprintf(`{name: b, url: "http://localhost:%s", models: [m], max_wait: 2s, api_key_file: %q}`, at.Port(), key))
	time.Sleep(time.Second)
	require.Zero(t, e.count(), "nobody needs it")
	require.Contains(t, s.get(admin+"/v1/status"), `"state":"asleep"`)

	r := s.post(chatPath, chatBody("m", false), "Authorization", "Bearer callers")
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Less(t, r.elapsed, 2*time.Second)
	require.Equal(t, []string{"Bearer " + engineSecret}, keysOf(e))
	require.Equal(t, 2, e.count(), "one question, and the request")
	require.Equal(t, "/health", e.requests[0].URL.Path)
	require.Equal(t, "Bearer "+engineSecret, e.requests[0].Header.Get("Authorization"))
	require.Equal(t, http.StatusNotFound, s.post(chatPath, chatBody("unknown", false)).status)

	// A backend that is gone does not get requests: they wait for it.
	e.CloseClientConnections()
	require.NoError(t, e.Listener.Close())
	r = s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
	require.Contains(t, r.body, "model_waking")
	for _, where := range []string{serve.out.String(), s.get(admin + "/metrics"), s.get(admin + "/v1/status")} {
		require.NotContains(t, where, engineSecret)
	}
}
