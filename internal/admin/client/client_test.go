// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/sitemap"
)

const (
	token = "secret"
	good  = `{"generation": 3, "placements": [{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true}]}`
)

// router is the real admin API.
func router(t *testing.T) http.Handler {
	t.Helper()
	return admin.Handler(admin.Deps{
		Tokens: []string{token}, Maps: sitemap.NewStore("here", nil), Metrics: prometheus.NewRegistry(),
		Ready: func() string { return "" }, Log: zerolog.Nop(),
	})
}

func connect(t *testing.T, h http.Handler, token string) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(s.URL+"/", token)
	require.NoError(t, err)
	return c
}

// says answers every call the same.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "https://elsewhere.example/")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestPushAndGetAMap(t *testing.T) {
	t.Parallel()
	c := connect(t, router(t), token)
	_, err := c.Map(t.Context())
	var refused *Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusNotFound, refused.Status)
	require.Equal(t, "map_not_loaded", refused.Code)

	sum, err := c.PushMap(t.Context(), []byte(good), Push{})
	require.NoError(t, err)
	require.Equal(t, sitemap.Summary{Generation: 3, Placements: 1, Holdable: 1}, sum)
	m, err := c.Map(t.Context())
	require.NoError(t, err)
	require.JSONEq(t, good, string(m.JSON))
	require.Equal(t, "pushed", m.Source)
	require.Less(t, m.Age, time.Minute)
	require.Regexp(t, `^".+"$`, m.ETag)

	lower := strings.Replace(good, "3", "2", 1)
	_, err = c.PushMap(t.Context(), []byte(lower), Push{})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusConflict, refused.Status)
	require.ErrorContains(t, err, "generation 2 is lower than 3")
	_, err = c.PushMap(t.Context(), []byte(lower), Push{Force: true, IfMatch: `"another"`})
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusPreconditionFailed, refused.Status)
	sum, err = c.PushMap(t.Context(), []byte(lower), Push{Force: true, IfMatch: m.ETag})
	require.NoError(t, err)
	require.EqualValues(t, 2, sum.Generation)
}

func TestARefusedMapNamesItsProblems(t *testing.T) {
	t.Parallel()
	_, err := connect(t, router(t), token).PushMap(t.Context(), []byte(`{"x": 1, "sites": 2}`), Push{})
	var refused *Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, sitemap.Problems{
		{Path: "x", Message: "is not a known field"}, {Path: "sites", Message: "must be an array, not a number"},
	}, refused.Problems)
	require.Equal(t, http.StatusBadRequest, refused.Status)
}

func TestAWrongTokenIsRefused(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "wrong"} {
		_, err := connect(t, router(t), token).Map(t.Context())
		var refused *Error
		require.ErrorAs(t, err, &refused)
		require.Equal(t, http.StatusUnauthorized, refused.Status)
	}
}

func TestJSONSendsABodyAndReadsTheAnswer(t *testing.T) {
	t.Parallel()
	var method, path, body, kind string
	c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		method, path, body, kind = r.Method, r.URL.Path, string(text), r.Header.Get("Content-Type")
		_, _ = io.WriteString(w, `{"hints": 3, "warm": 2, "unplaced": 1}`)
	}), token)
	var sum sitemap.HintsSummary
	call := Call{Method: http.MethodPost, Path: "/v1/sitemap/hints", Body: []byte(`{"hints": []}`)}
	require.NoError(t, c.JSON(t.Context(), call, &sum))
	require.Equal(t, sitemap.HintsSummary{Hints: 3, Warm: 2, Unplaced: 1}, sum)
	require.Equal(t, []string{"POST", "/v1/sitemap/hints", `{"hints": []}`, "application/json"}, []string{method, path, body, kind})
}

func TestPathsStayEscaped(t *testing.T) {
	t.Parallel()
	var uri string
	c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri = r.RequestURI
		w.WriteHeader(http.StatusNotModified)
	}), "")
	answer, err := c.Do(t.Context(), Call{Method: http.MethodPost, Path: "/v1/wake/" + url.PathEscape("org/m:7b"), Query: url.Values{"for": {"10m"}}})
	require.NoError(t, err)
	require.Equal(t, http.StatusNotModified, answer.Status)
	require.Equal(t, "/v1/wake/org%2Fm:7b?for=10m", uri)
}

func TestAnswersThatAreNoRouters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want string
	}{
		"a page":        {says(502, "<html>Bad Gateway"), "status 502 (Bad Gateway) and not one of an admin API"},
		"another error": {says(500, `{"error": "x"}`), "status 500 (Internal Server Error) and not one of an admin API"},
		"a redirect":    {says(302, ""), "status 302 is not an answer of an admin API"},
		"no JSON":       {says(200, "welcome"), "reading the router's answer"},
		"too long":      {says(200, strings.Repeat(" ", maxAnswer+1)), "larger than"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "{")
		}, "reading the router's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := connect(t, c.h, token).PushMap(t.Context(), []byte(good), Push{})
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestAUnixSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	s := &http.Server{Handler: router(t), ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c, err := New("unix://"+socket, token)
	require.NoError(t, err)
	sum, err := c.PushMap(t.Context(), []byte(good), Push{})
	require.NoError(t, err)
	require.EqualValues(t, 3, sum.Generation)
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
	_, err = c.Map(t.Context())
	require.ErrorContains(t, err, nobodyThere)
}

const nobodyThere = ": is holdgate serve running there? --admin names its --admin-listen"

func TestAPortThatNobodyListensOn(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	c, err := New("http://"+l.Addr().String(), token)
	require.NoError(t, err)
	_, err = c.Map(t.Context())
	require.ErrorContains(t, err, "asking the router: ")
	require.ErrorContains(t, err, nobodyThere)
}

func TestBadAddresses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"", "127.0.0.1:9003", "localhost", "ftp://h", "http://", "http:///x", "unix://x", "unix:", "http://a b",
		"http://u:p@h", "http://h?x", "http://h#x", "http://h?",
	} {
		_, err := New(bad, token)
		require.ErrorContains(t, err, "must ", bad)
		require.NotContains(t, err.Error(), "u:p")
	}
}

func TestACancelledCallEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := connect(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}), token)
	_, err := c.Map(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
