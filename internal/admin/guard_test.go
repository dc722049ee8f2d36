// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/sitemap"
)

func TestAWebPageCannotCallTheAPI(t *testing.T) {
	t.Parallel()
	const reported = "POST /v1/wake/m/failed"
	type call struct {
		tokens  []string
		request string // method and path
		host    string
		headers map[string]string
		local   net.Addr
		status  int
		code    string
	}
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9003}
	for name, c := range map[string]call{
		"no browser":               {request: reported, host: "127.0.0.1:9003", status: http.StatusAccepted},
		"own page":                 {request: reported, host: "localhost:9003", headers: map[string]string{"Sec-Fetch-Site": "same-origin"}, status: http.StatusAccepted},
		"page of another site":     {request: reported, host: "127.0.0.1:9003", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, status: http.StatusForbidden, code: "cross_origin"},
		"page of an older browser": {request: reported, host: "127.0.0.1:9003", headers: map[string]string{"Origin": "https://attacker.example"}, status: http.StatusForbidden, code: "cross_origin"},
		"with a token too":         {tokens: []string{"t"}, request: reported, host: "router:9003", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer t"}, status: http.StatusForbidden, code: "cross_origin"},
		"a link":                   {request: "GET /healthz", host: "127.0.0.1:9003", headers: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: http.StatusOK},
		"DNS rebinding":            {request: reported, host: "attacker.example:9003", headers: map[string]string{"Sec-Fetch-Site": "same-origin"}, local: loopback, status: http.StatusForbidden, code: "host_not_allowed"},
		"rebinding that reads":     {request: "GET /v1/sitemap", host: "attacker.example", local: loopback, status: http.StatusForbidden, code: "host_not_allowed"},
		"rebinding, metrics":       {request: "GET /metrics", host: "attacker.example", local: loopback, status: http.StatusForbidden, code: "host_not_allowed"},
		"an address of others":     {request: reported, host: "10.0.0.1:9003", status: http.StatusForbidden, code: "host_not_allowed"},
		"a name that looks local":  {request: reported, host: "localhost.attacker.example", status: http.StatusForbidden, code: "host_not_allowed"},
		"IPv6":                     {request: reported, host: "[::1]:9003", status: http.StatusAccepted},
		"IPv6 without a port":      {request: reported, host: "[::1]", status: http.StatusAccepted},
		"name below localhost":     {request: reported, host: "router.localhost:9003", status: http.StatusAccepted},
		"no host":                  {request: "GET /healthz", host: "", status: http.StatusOK},
		"over a unix socket":       {request: reported, host: "router", local: &net.UnixAddr{Net: "unix", Name: "/a"}, status: http.StatusAccepted},
		"with a token by any name": {tokens: []string{"t"}, request: reported, host: "router.example", headers: map[string]string{"Authorization": "Bearer t"}, status: http.StatusAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reports := 0
			h := Handler(Deps{
				Tokens: c.tokens, Maps: sitemap.NewStore("a", nil), Metrics: prometheus.NewRegistry(), Ready: func() string { return "" },
				Wake:       func(string, time.Duration) error { return nil },
				WakeFailed: func(string, string) error { reports++; return nil },
			})
			method, path, _ := strings.Cut(c.request, " ")
			r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
			if c.local != nil {
				r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.local))
			}
			r.Host = c.host
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, c.status, w.Code, w.Body.String())
			require.Contains(t, w.Body.String(), c.code)
			if c.status == http.StatusForbidden {
				require.Zero(t, reports)
			}
		})
	}
}
