// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAHeldRequestGetsTheEnginesOwnAnswer(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Engine", "own")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, "busy")
	})
	body := chatBody("m", false)
	answer := s.start(t.Context(), chatPath+"?a=b%20c&a=%2F", body, "X-Custom", "kept", "Authorization", "Bearer x",
		"X-Wake-Timeout", "50s", "X-Holdgate-Destination", "127.0.0.1:1", "Accept-Encoding", "gzip")
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.metric(`hivenet_wake_wanted{model="m"}`, "1")
	s.register(hello("a", e.addr(), 4, "m"))
	r := <-answer
	require.NoError(t, r.err)
	require.Equal(t, http.StatusTooManyRequests, r.status, r.body)
	require.Equal(t, "busy", r.body)
	require.Equal(t, "own", r.header.Get("X-Engine"))
	require.Regexp(t, `^hold;dur=\d+, queue;dur=\d+$`, r.header.Get("Server-Timing"))
	require.Len(t, r.header.Get("X-Request-Id"), 36)

	got, sent := e.last()
	require.Equal(t, chatPath+"?a=b%20c&a=%2F", got.RequestURI)
	require.Equal(t, body, sent)
	require.Equal(t, int64(len(body)), got.ContentLength)
	require.Equal(t, "kept", got.Header.Get("X-Custom"))
	require.Equal(t, "Bearer x", got.Header.Get("Authorization"))
	require.Equal(t, r.header.Get("X-Request-Id"), got.Header.Get("X-Request-Id"))
	require.Equal(t, strings.TrimPrefix(s.url, "http://"), got.Host)
	for name := range got.Header {
		require.False(t, strings.HasPrefix(name, "X-Wake-") || strings.HasPrefix(name, "X-Holdgate-") || strings.HasPrefix(name, "X-Envoy-"), name)
	}
	s.atRest()
	s.metric(`hivenet_wake_holds_total{outcome="released"}`, "1")
	s.metric(`hivenet_routing_requests_routed_total{engine="custom",model="m",region="test",tenant_id="default"}`, "1")
}

func TestKeepalivesBeginAnAnswerThatTheEngineFinishes(t *testing.T) {
	for name, c := range map[string]struct {
		path, body, form, contentType string
	}{
		"chat, streaming":     {chatPath, chatBody("m", true), ": keep-alive\n", "text/event-stream"},
		"chat, not streaming": {chatPath, chatBody("m", false), " ", "application/json"},
		"messages, streaming": {"/v1/messages", chatBody("m", true), ": keep-alive\nevent: ping\ndata: {\"type\": \"ping\"}\n\n", "text/event-stream"},
		"embeddings":          {"/v1/embeddings", `{"model":"m","input":"x"}`, " ", "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t, "--wake-keepalive", "40ms")
			e := newEngine(t, nil)
			answer := s.start(t.Context(), c.path, c.body)
			s.metric(`hivenet_pending_demand{model="m"}`, "1")
			time.Sleep(150 * time.Millisecond) // some keepalives
			s.register(hello("a", e.addr(), 4, "m"))
			r := <-answer
			require.NoError(t, r.err)
			require.Equal(t, http.StatusOK, r.status)
			require.Contains(t, r.header.Get("Content-Type"), c.contentType)
			require.Equal(t, "no-cache", r.header.Get("Cache-Control"))
			require.Equal(t, "no", r.header.Get("X-Accel-Buffering"))
			require.Empty(t, r.header.Get("Content-Length"))
			require.Len(t, r.header.Get("X-Request-Id"), 36)
			kept, ok := strings.CutSuffix(r.body, `{"answer":true}`)
			require.True(t, ok, r.body)
			n := strings.Count(kept, c.form)
			require.GreaterOrEqual(t, n, 2)
			require.Equal(t, strings.Repeat(c.form, n), kept, "nothing but whole keepalives")
			s.atRest()
		})
	}
}

func TestAHoldThatExpires(t *testing.T) {
	t.Run("before a keepalive", func(t *testing.T) {
		s := startSite(t)
		r := s.post(chatPath, chatBody("short", false))
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Equal(t, "30", r.header.Get("Retry-After"))
		require.JSONEq(t, `{"error":{"code":"model_waking","message":"model short is waking up; retry in 30 seconds","source":"router","retry_after":30}}`, r.body)
		require.GreaterOrEqual(t, r.elapsed, 300*time.Millisecond)
		s.metric(`hivenet_wake_holds_total{outcome="expired"}`, "1")
		s.metric(`hivenet_pending_demand{model="short"}`, "0")
		s.metric(`hivenet_wake_wanted{model="short"}`, "1") // the linger
	})
	const message = `model short is waking up; retry in 30 seconds`
	for name, c := range map[string]struct{ path, body, end string }{
		"chat, streaming": {
			chatPath, chatBody("short", true),
			`data: {"error":{"code":"model_waking","message":"` + message + `","source":"router","retry_after":30}}` + "\n\n",
		},
		"chat, not streaming": {
			chatPath, chatBody("short", false),
			`{"error":{"code":"model_waking","message":"` + message + `","source":"router","retry_after":30}}`,
		},
		"messages, streaming": {
			"/v1/messages", chatBody("short", true),
			"event: error\n" + `data: {"type":"error","error":{"type":"overloaded_error","code":"model_waking","message":"model_waking: ` + message + `","source":"router","retry_after":30}}` + "\n\n",
		},
		"responses, streaming": {
			"/v1/responses", chatBody("short", true),
			"event: error\n" + `data: {"type":"error","sequence_number":0,"code":"model_waking","message":"` + message + `","param":null,"error":{"code":"model_waking","message":"` + message + `","source":"router","retry_after":30}}` + "\n\n" +
				"event: response.failed\n" + `data: {"type":"response.failed","sequence_number":1,"response":{"object":"response","status":"failed","error":{"code":"model_waking","message":"` + message + `"}}}` + "\n\n",
		},
	} {
		t.Run(name+", after keepalives", func(t *testing.T) {
			s := startSite(t, "--wake-keepalive", "100ms")
			r := s.post(c.path, c.body)
			require.NoError(t, r.err)
			require.Equal(t, http.StatusOK, r.status)
			require.True(t, strings.HasSuffix(r.body, c.end), r.body)
		})
		t.Run(name+", cut", func(t *testing.T) {
			s := startSite(t, "--wake-keepalive", "100ms", "--wake-late-error", "abort")
			r := s.post(c.path, c.body)
			require.Equal(t, http.StatusOK, r.status)
			require.ErrorIs(t, r.err, io.ErrUnexpectedEOF)
			require.True(t, strings.HasSuffix(r.body, c.end), "the reason comes before the cut: %q", r.body)
			require.Less(t, r.elapsed, 1200*time.Millisecond, "300 ms, and not the second that Envoy would wait to close")
		})
	}
	t.Run("not streaming, of an SDK, is cut behind the error", func(t *testing.T) {
		s := startSite(t, "--wake-keepalive", "100ms")
		r := s.post(chatPath, chatBody("short", false), "x-stainless-lang", "python")
		require.Equal(t, http.StatusOK, r.status)
		require.ErrorIs(t, r.err, io.ErrUnexpectedEOF)
		require.Contains(t, r.body, message)
	})
}

func TestAClientThatLeavesIsGoneFromEveryCount(t *testing.T) {
	s := startSite(t, "--wake-linger", "0s")
	ctx, cancel := context.WithCancel(t.Context())
	answer := s.start(ctx, chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	cancel()
	require.ErrorIs(t, (<-answer).err, context.Canceled)
	s.metric(`hivenet_wake_holds_total{outcome="disconnected"}`, "1")
	s.metric(`hivenet_wake_wanted{model="m"}`, "0")
	s.atRest()
}

func TestAClientThatLeavesEndsTheEnginesWork(t *testing.T) {
	s := startSite(t)
	ended := make(chan struct{})
	e := newEngine(t, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	answer := s.start(ctx, chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", e.addr(), 4, "m"))
	s.eventually("the engine has the request", func() bool { return e.count() == 1 })
	cancel()
	require.ErrorIs(t, (<-answer).err, context.Canceled)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the engine's call was not canceled")
	}
	s.atRest()
}

func TestAnEngineThatDiesHalfWay(t *testing.T) {
	half := func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhalf \n\r\n")
	}
	t.Run("streaming", func(t *testing.T) {
		s := startSite(t)
		answer := s.start(t.Context(), chatPath, chatBody("m", true))
		s.metric(`hivenet_pending_demand{model="m"}`, "1")
		s.register(hello("a", rawEngine(t, half), 4, "m"))
		r := <-answer
		require.NoError(t, r.err)
		require.Equal(t, "half \n\ndata: {\"error\":{\"code\":\"backend_error\",\"message\":\"the engine ended its answer half way\",\"source\":\"router\"}}\n\n", r.body)
		s.atRest()
	})
	t.Run("not streaming", func(t *testing.T) {
		s := startSite(t)
		answer := s.start(t.Context(), chatPath, chatBody("m", false))
		s.metric(`hivenet_pending_demand{model="m"}`, "1")
		s.register(hello("a", rawEngine(t, half), 4, "m"))
		require.ErrorIs(t, (<-answer).err, io.ErrUnexpectedEOF)
		s.atRest()
	})
}

func TestAnEngineErrorAfterAKeepalive(t *testing.T) {
	fail := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"too long \"prompt\""}}`)
	}
	for name, c := range map[string]struct {
		stream bool
		end    string
	}{
		"streaming":     {true, ": keep-alive\ndata: {\"error\":{\"code\":\"backend_error\",\"message\":\"too long \\\"prompt\\\"\",\"source\":\"engine\"}}\n\n"},
		"not streaming": {false, ` {"error":{"message":"too long \"prompt\""}}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t, "--wake-keepalive", "50ms")
			answer := s.start(t.Context(), chatPath, chatBody("m", c.stream))
			s.metric(`hivenet_pending_demand{model="m"}`, "1")
			time.Sleep(80 * time.Millisecond) // a keepalive
			s.register(hello("a", newEngine(t, fail).addr(), 4, "m"))
			r := <-answer
			require.NoError(t, r.err)
			require.True(t, strings.HasSuffix(r.body, c.end), r.body)
		})
	}
}

func TestKeepalivesCanBeSwitchedOff(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "30ms")
	e := newEngine(t, nil)
	answer := s.start(t.Context(), chatPath, chatBody("m", true), "X-Wake-Keepalive", "off")
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(100 * time.Millisecond) // a keepalive would have come
	s.register(hello("a", e.addr(), 4, "m"))
	r := <-answer
	require.Equal(t, `{"answer":true}`, r.body)
	require.Regexp(t, `^hold;dur=\d+, queue;dur=\d+$`, r.header.Get("Server-Timing"))
	got, _ := e.last()
	require.Empty(t, got.Header.Get("X-Wake-Keepalive"))
	s.atRest()
}

func TestAPushThatRemovesAPlacementEndsItsHolds(t *testing.T) {
	s := startSite(t)
	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	require.Equal(t, http.StatusOK, s.putMap(`{"placements":[]}`).status)
	r := <-answer
	require.Equal(t, http.StatusNotFound, r.status)
	require.Contains(t, r.body, `"code":"model_not_found"`)
	s.metric(`hivenet_wake_holds_total{outcome="removed"}`, "1")
	require.NotContains(t, s.metrics(), "hivenet_pending_demand{")
}

func TestDrainEndsHoldsAndLetsRelaysFinish(t *testing.T) {
	s := startSite(t)
	held := s.start(t.Context(), chatPath, `{"model":"short","x":1}`)
	begun, finish := make(chan struct{}), make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first ")
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-finish
		_, _ = io.WriteString(w, "second")
	})
	require.Equal(t, http.StatusServiceUnavailable, (<-held).status)
	require.Equal(t, http.StatusOK, s.putMap(testMap).status)
	relayed := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", e.addr(), 1, "m"))
	<-begun
	embedding := s.start(t.Context(), "/v1/rerank", `{"model":"m"}`) // queued: the slot is taken
	s.eventually("two requests in flight", func() bool { return s.app.InFlight() == 2 })
	stopped := make(chan error, 1)
	go func() { stopped <- s.app.Stop(context.Background()) }()
	r := <-embedding
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.JSONEq(t, `{"error":{"code":"draining","message":"this router is shutting down; retry in 1 second","source":"router","retry_after":1}}`, r.body)
	close(finish)
	r = <-relayed
	require.NoError(t, r.err)
	require.Equal(t, "first second", r.body)
	require.NoError(t, <-stopped)
}
