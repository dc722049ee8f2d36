// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/sitemap"
)

func TestOddWakesAreAnswered(t *testing.T) {
	t.Parallel()
	said := func(model string, _ any) error {
		if !strings.HasPrefix(model, "m") {
			return fmt.Errorf("%w: %s", ErrUnknownModel, model)
		}
		return nil
	}
	h := Handler(Deps{
		Maps: sitemap.NewStore("here", nil), Metrics: prometheus.NewRegistry(), Ready: func() string { return "" }, Log: zerolog.Nop(),
		Wake:       func(model string, span time.Duration) error { return said(model, span) },
		WakeFailed: func(model, reason string) error { return said(model, reason) },
	})
	for name, tc := range map[string]struct {
		path, body string
		status     int
		says       string
	}{
		"name with slashes":        {"m/a%2Fb?for=1h", "", http.StatusAccepted, `{"model":"m/a/b","wanted_for":"1h0m0s"}`},
		"too long":                 {"m?for=1h1ns", "", http.StatusBadRequest, "at most 1h"},
		"no time":                  {"m?for=0s", "", http.StatusBadRequest, "above 0"},
		"unknown":                  {"x", "", http.StatusNotFound, "the model is not known here: x"},
		"no text":                  {"%ff", "", http.StatusNotFound, "the model is not known here: \ufffd"},
		"name like a report":       {"m%2Ffailed", "", http.StatusAccepted, `{"model":"m/failed","wanted_for":"5m0s"}`},
		"failed":                   {"m/failed", `{"reason":"no GPU left: é"}`, http.StatusAccepted, `{"model":"m"}`},
		"failed, more than a line": {"m/failed", `{"reason":"no\nGPU"}`, http.StatusBadRequest, "on one line"},
		"failed, hidden letters":   {"m/failed", `{"reason":"no\u202eGPU"}`, http.StatusBadRequest, "on one line"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost/v1/wake/"+tc.path, strings.NewReader(tc.body)))
			require.Equal(t, tc.status, w.Code)
			require.Contains(t, w.Body.String(), tc.says)
		})
	}
}
