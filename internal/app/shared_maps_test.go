// SPDX-License-Identifier: Apache-2.0

package app

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// startShared starts a router of a site. It is stopped when the test ends.
func startShared(t *testing.T, server *valkeytest.Server, flags ...string) *App {
	t.Helper()
	a := newApp(t, append([]string{
		"--shared=" + server.URL(), "--extproc-listen=unix://" + filepath.Join(t.TempDir(), "x.sock"),
		"--agents-listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--drain-timeout=1s",
	}, flags...)...)
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, a.Stop(t.Context())) })
	return a
}

// call calls the admin API of a router, and returns the status and the body.
func call(t *testing.T, a *App, method, path, body string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.AdminAddr()+path, strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text), answer.Header
}

func TestAMapPushedToAnyRouterIsInForceOnAll(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	file := filepath.Join(t.TempDir(), "map.json")
	one, two := startShared(t, server), startShared(t, server, "--map-file="+file)
	code, body, _ := call(t, two, http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, code, body)
	code, body, _ = call(t, one, http.MethodPut, "/v1/sitemap", statusMap)
	require.Equal(t, http.StatusOK, code, body)
	valkeytest.Await(t, "the other router is ready", func() bool {
		code, _, _ := call(t, two, http.MethodGet, "/readyz", "")
		return code == http.StatusOK
	})
	code, _, header := call(t, two, http.MethodGet, "/v1/sitemap", "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "shared", header.Get("X-Sitemap-Source"))
	require.Equal(t, "shared", two.status().Map.Source)
	require.Equal(t, "pushed", one.status().Map.Source)
	// The rules hold for the site: a lower generation is refused at the other router, too.
	code, body, _ = call(t, two, http.MethodPut, "/v1/sitemap", strings.Replace(statusMap, `"generation": 7`, `"generation": 6`, 1))
	require.Equal(t, http.StatusConflict, code, body)

	// A router that starts later is ready at once.
	begin := time.Now()
	late := startShared(t, server)
	t.Logf("started with the map after %v", time.Since(begin))
	require.True(t, late.status().Ready, late.status().NotReady)
	require.Equal(t, "shared", late.status().Map.Source)
	require.Equal(t, []string{"both", "cold", "m"}, late.maps.Current().Holdable())

	// Without the server, the copy on disk is restored.
	server.Stop()
	alone := startShared(t, server, "--map-file="+file)
	require.True(t, alone.status().Ready)
	require.Equal(t, "restored", alone.status().Map.Source)
}
