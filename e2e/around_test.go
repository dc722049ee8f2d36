// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An engine decodes its paths, and takes a request whose upgrade it ignores for a call. None of
// these requests may get to it without the router's decision.
func TestByRouteNoCallGoesAroundTheRouter(t *testing.T) {
	var calls atomic.Int64
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == chatPath {
			calls.Add(1)
		}
		_, _ = fmt.Fprint(w, r.URL.Path)
	})
	s := startBehindEnvoyGateway(t, e.addr(), "")
	require.Equal(t, "/tokenize", s.post("/tokenize", "{}").body, "the gateway sends other paths on")
	send := func(path string, headers ...string) (status string) {
		t.Helper()
		body := chatBody("nobody", false)
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%s\r\n%s", path, len(body), strings.Join(append(headers, ""), "\r\n"), body)
		require.NoError(t, err)
		line, _ := bufio.NewReader(c).ReadString('\n')
		return line
	}
	for _, path := range []string{
		"/v1/chat%2Fcompletions", "/v1/ch%61t/completions", "/v1/chat%252Fcompletions", "//v1/chat/completions",
		"/v1//chat/completions", "/v1/x/../chat/completions", "/v1/x/%2e%2e/chat/completions", chatPath + "/",
	} {
		require.Contains(t, []string{"307", "404"}, strings.Fields(send(path))[1], path)
	}
	for _, headers := range [][]string{
		{"Upgrade: websocket"},
		{"Upgrade: websocket", "Connection: upgrade"},
		{"Upgrade: h2c", "Connection: upgrade"},
		{"Upgrade: x", "Connection: upgrade"},
	} {
		require.Contains(t, []string{"403", "404", "405"}, strings.Fields(send(chatPath, headers...))[1], headers)
	}
	require.Zero(t, calls.Load())
	s.atRest()
}

// A gateway answers 503 when an engine dies under a request. The request must not go to engines
// for as long as it may be held.
func TestByRouteARequestUnderWhichEnginesDieEnds(t *testing.T) {
	var calls atomic.Int64
	e := newEngine(t, func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	})
	s := startBehindEnvoyGateway(t, e.addr(), "", "--relay", throughGateway, "--wake-keepalive", "100ms", "--wake-hold-budget", "10s")
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(someKeepalives)
	s.register(hello("a", e.addr(), 4, "m"))
	r := <-held
	require.Contains(t, r.body, "backend_error")
	require.Equal(t, int64(3), calls.Load())
	s.atRest()
}

// An Envoy that takes streamed answers is known from one that does not, although clients leave at
// their first keepalive.
func TestByRouteAClientThatLeavesSilencesNoOther(t *testing.T) {
	e := newEngine(t, nil)
	s := startBehindEnvoyGateway(t, e.addr(), "", "--relay", throughGateway, "--wake-keepalive", "100ms")
	for n := range 3 {
		ctx, leave := context.WithCancel(t.Context())
		resp, err := s.http.Do(s.request(ctx, http.MethodPost, chatPath, chatBody("m", false)))
		require.NoError(t, err)
		first := make([]byte, 1)
		_, err = resp.Body.Read(first)
		require.NoError(t, err, n)
		leave()
		_ = resp.Body.Close()
		s.metric(`hivenet_pending_demand{model="m"}`, "0")
	}
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(someKeepalives)
	s.register(hello("a", e.addr(), 4, "m"))
	r := <-held
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.True(t, strings.HasPrefix(r.body, " "), "it had keepalives")
	require.NotContains(t, s.log.String(), "does not take streamed answers")
	s.atRest()
}
