// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAWebhookIsCalledWhileAModelIsWanted(t *testing.T) {
	calls := make(chan *http.Request, 10)
	fail := false
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls <- r.WithContext(context.WithValue(r.Context(), requestBody{}, string(body)))
		if fail {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(hook.Close)
	u, err := url.Parse(hook.URL)
	require.NoError(t, err)
	headers := filepath.Join(t.TempDir(), "headers.yaml")
	require.NoError(t, os.WriteFile(headers, []byte(u.Host+": {Authorization: Bearer hook-secret}\n"), 0o600))
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}), 0o600))
	s := startSite(t, "--webhook-headers-file", headers, "--webhook-ca-file", ca, "--site-id=here", "--wake-linger", "0s", "--wake-cooldown", "100ms")
	require.Equal(t, http.StatusOK, s.putMap(`{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true,
		"wake":{"url":"`+hook.URL+`/wake","cooldown":"1h"}}]}`).status)

	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	call := <-calls
	require.Equal(t, http.MethodPost, call.Method)
	require.Equal(t, "/wake", call.URL.Path)
	require.Equal(t, "Bearer hook-secret", call.Header.Get("Authorization"))
	require.NotEmpty(t, call.Header.Get("Idempotency-Key"))
	require.Contains(t, call.Context().Value(requestBody{}), `"model":"m"`)
	second := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	a := s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	require.Equal(t, http.StatusOK, (<-second).status)
	require.Empty(t, calls, "one call for one need")
	require.NotContains(t, s.log.String(), "hook-secret")
	a.leave()
	s.atRest()

	// A webhook that refuses is a failed wake: waiters get its error at once.
	s.eventually("asleep", func() bool {
		return strings.Contains(s.do(s.request(t.Context(), http.MethodGet, "/v1/models/m", "")).body, `"asleep"`)
	})
	fail = true
	require.Equal(t, http.StatusOK, s.putMap(`{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true,
		"wake":{"url":"`+hook.URL+`/other"}}]}`).status)
	r := s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Contains(t, r.body, "could not be woken")
	require.Less(t, r.elapsed, 5*time.Second)
	s.metric(`hivenet_wake_holds_total{outcome="wake_failed"}`, "1")
	s.atRest()
}

func TestAModelIsWokenAheadOfItsTraffic(t *testing.T) {
	s := startSite(t)
	call := func(path, body string) result {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.app.AdminAddr()+path, strings.NewReader(body))
		require.NoError(t, err)
		return s.do(r)
	}
	require.Equal(t, http.StatusNotFound, call("/v1/wake/nobody", "").status)
	require.Equal(t, http.StatusBadRequest, call("/v1/wake/m?for=2h", "").status)
	s.metric(`hivenet_wake_wanted{model="m"}`, "0")
	p := start(t, "wake", "m", "--for", "10m", "--admin", "http://"+s.app.AdminAddr())
	require.NoError(t, p.ends())
	require.Contains(t, p.out.String(), "m is wanted for 10m0s")
	s.metric(`hivenet_wake_wanted{model="m"}`, "1")
	s.metric(`hivenet_pending_demand{model="m"}`, "0")

	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	require.Equal(t, http.StatusBadRequest, call("/v1/wake/m/failed", `{"why":1}`).status)
	require.Equal(t, http.StatusAccepted, call("/v1/wake/m/failed", `{"reason":"no GPU is free"}`).status)
	r := <-held
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Contains(t, r.body, "model m could not be woken: no GPU is free; retry in")
	// This lasts for the cooldown.
	require.Contains(t, s.post(chatPath, chatBody("m", false)).body, "no GPU is free")
	s.atRest()
}
