// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json/v2"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/target"
)

// startShared starts a router of a site. It is stopped when the test ends.
func startShared(t *testing.T, server *valkeytest.Server, flags ...string) *App {
	t.Helper()
	a := newApp(t, append([]string{
		"--shared=" + server.URL(), "--extproc-listen=unix://" + filepath.Join(t.TempDir(), "x.sock"),
		"--agents-listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--drain-timeout=1s",
	}, flags...)...)
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, a.Stop(context.Background())) })
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
	polltest.Until(t, "the other router is ready", func() bool {
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
	polltest.Until(t, "the map is on disk", func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
	server.Stop()
	alone := startShared(t, server, "--map-file="+file)
	require.True(t, alone.status().Ready)
	require.Equal(t, "restored", alone.status().Map.Source)
}

func TestAnyRouterShowsTheStatusOfTheSite(t *testing.T) {
	t.Parallel()
	const oneCold = `{"generation": 7, "placements": [{"model": "cold", "kind": "chat", "site": "here", "scale_from_zero": true}]}`
	server := valkeytest.Start(t)
	one, two := startShared(t, server), startShared(t, server)
	code, body, _ := call(t, one, http.MethodPut, "/v1/sitemap", oneCold)
	require.Equal(t, http.StatusOK, code, body)
	site := func(a *App) (s admin.SiteStatus) {
		code, body, _ := call(t, a, http.MethodGet, "/v1/status?site=1", "")
		require.Equal(t, http.StatusOK, code)
		require.NoError(t, json.Unmarshal([]byte(body), &s))
		return s
	}
	polltest.Until(t, "two ready routers with the map", func() bool {
		s := site(two)
		return len(s.Routers) == 2 && s.Routers[1].State == "ready" && s.Routers[1].Generation == 7
	})
	s := site(two)
	require.Empty(t, s.Alone)
	require.True(t, s.Routers[0].This)
	require.Equal(t, one.AdminAddr(), s.Routers[1].Admin)
	require.Equal(t, one.shared.ID(), s.Routers[1].ID)
	require.Equal(t, s.Routers[0].MapTag, s.Routers[1].MapTag)
	require.NotEmpty(t, s.Routers[1].Host)

	// A wake at one router is known to both, and KEDA is told so at either.
	code, body, _ = call(t, one, http.MethodPost, "/v1/wake/cold", "")
	require.Equal(t, http.StatusAccepted, code, body)
	polltest.Until(t, "the other router shows that the model is wanted", func() bool {
		for _, m := range site(two).Models {
			if m.Model == "cold" {
				return m.Wanted && m.State == "waking"
			}
		}
		return false
	})
	active, err := two.notifiers.keda.IsActive(t.Context(), &externalscaler.ScaledObjectRef{ScalerMetadata: map[string]string{"model": "cold"}})
	require.NoError(t, err)
	require.True(t, active.GetResult())
	w, err := two.machine.Hold(holdstate.Request{Target: target.Target{Model: "cold"}})
	require.NoError(t, err)
	explained := func() (e admin.Explanation) {
		code, body, _ := call(t, one, http.MethodGet, "/v1/explain?model=cold", "")
		require.Equal(t, http.StatusOK, code, body)
		require.NoError(t, json.Unmarshal([]byte(body), &e))
		return e
	}
	polltest.Until(t, "explain counts what waits at the other router", func() bool {
		return strings.Contains(explained().Steps[6].Why, "wait for it at all routers of the site: 1")
	})
	require.Equal(t, admin.ScopeSite, explained().Scope)
	require.Equal(t, 1, site(one).Models[0].Demand)
	polltest.Until(t, "one hold at the other router", func() bool { return site(one).Routers[1].Held == 1 })
	w.Report(holdstate.Leave)
	polltest.Until(t, "and none", func() bool { return site(one).Routers[1].Held == 0 && site(one).Models[0].Demand == 0 })

	server.Stop()
	polltest.Until(t, "explain says so", func() bool { return explained().Scope == admin.ScopeRouter })
	require.Contains(t, explained().Steps[6].Why, "wait for it at this router: 0")
	polltest.Until(t, "it says that it is alone", func() bool {
		s := site(two)
		return len(s.Routers) == 1 && s.Alone == "the server of --shared does not answer"
	})
}

func TestARouterWithoutSharedStateAnswersForItself(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	s := a.siteStatus().Now()
	require.Equal(t, "this router shares no state: it has no --shared", s.Alone)
	require.Len(t, s.Routers, 1)
	require.Equal(t, "not_ready", s.Routers[0].State)
}
