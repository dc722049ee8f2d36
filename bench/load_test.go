// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func loadOf(t *testing.T, server *httptest.Server) load {
	t.Helper()
	body, err := chatBody(1 << 10)
	require.NoError(t, err)
	return load{
		addr: server.Listener.Addr().String(), request: rawRequest(body), want: backendAnswer(1 << 10),
		clients: 3, warmup: 20 * time.Millisecond, duration: 100 * time.Millisecond,
	}
}

func TestLoadCountsWhatTheBackendAnswered(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answerChat(w, r)
		served.Add(1)
	}))
	defer server.Close()
	// A machine that is busy elsewhere may leave a short window empty; a load that
	// never measures anything ends with the test's timeout.
	var r result
	var total int64
	l := loadOf(t, server)
	for ; len(r.latencies) == 0; l.duration *= 2 {
		var err error
		r, err = l.run(t.Context())
		require.NoError(t, err)
		total += int64(r.requests)
	}
	l.duration /= 2 // of the last run
	require.True(t, slices.IsSorted(r.latencies))
	require.Positive(t, r.latencies[0])
	require.LessOrEqual(t, len(r.latencies), r.requests)
	require.InDelta(t, float64(len(r.latencies))/l.duration.Seconds(), r.rate, 1e-6)
	server.Close() // waits for the handlers, which count after the answer
	require.Equal(t, total, served.Load())
}

func TestLoadEndsAtTheFirstWrongAnswer(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write(backendAnswer(1 << 10))
		},
		"body": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(backendAnswer(1<<10 - 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(handler)
			defer server.Close()
			_, err := loadOf(t, server).run(t.Context())
			require.ErrorContains(t, err, "want 200")
		})
	}
}
