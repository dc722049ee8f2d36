// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/sitemap"
)

// pipeListener gets connections in memory.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	conn, open := <-l
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l pipeListener) Close() error {
	close(l)
	return nil
}

func (pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// eventServer serves an API with events over connections in memory. Its limits are those of the
// admin port, so that a stream outlives them.
type eventServer struct {
	log    *events.Log
	server *http.Server
	client *http.Client
}

func startEvents(t *testing.T, tokens ...string) *eventServer {
	t.Helper()
	l := make(pipeListener)
	s := &eventServer{log: events.NewLog()}
	s.server = &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute,
		Handler: Handler(Deps{Tokens: tokens, Maps: sitemap.NewStore("a", nil), Metrics: prometheus.NewRegistry(), Events: s.log, Log: zerolog.Nop()}),
	}
	s.server.RegisterOnShutdown(s.log.Close)
	go func() { _ = s.server.Serve(l) }()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		l <- server
		return client, nil
	}}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = s.server.Close()
	})
	return s
}

// open opens a stream; headers are pairs of name and value.
func (s *eventServer) open(t *testing.T, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v1/events", http.NoBody)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.client.Do(r)
	require.NoError(t, err)
	return resp
}

// close closes a stream, which has no reader then.
func (s *eventServer) close(t *testing.T, resp *http.Response) {
	t.Helper()
	require.NoError(t, resp.Body.Close())
	time.Sleep(time.Second) // for a while the client reads on, in the hope of the end
	require.Zero(t, s.log.Readers())
}

// lines reads n lines of a stream.
func lines(t *testing.T, r *bufio.Reader, n int) (list []string) {
	t.Helper()
	for range n {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		list = append(list, strings.TrimSuffix(line, "\n"))
	}
	return list
}

func TestEventsAreStreamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startEvents(t)
		resp := s.open(t)
		require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		body := bufio.NewReader(resp.Body)
		require.Equal(t, []string{": events", ""}, lines(t, body, 2))
		s.log.Add(events.Event{Type: events.Held, Model: "a\nid: 7\n\nevent: x", Kind: "chat"})
		s.log.Add(events.Event{Type: events.Refused, Status: 404, Reason: "model_not_found"})
		got := lines(t, body, 7)
		id := strings.TrimPrefix(got[3], "id: ")
		require.Regexp(t, `^[0-9a-f]{8}-2$`, id)
		require.Equal(t, []string{
			"event: held", `data: {"type":"held","time":"2000-01-01T00:00:00Z","model":"a\nid: 7\n\nevent: x","kind":"chat"}`, "",
			"id: " + id, "event: refused", `data: {"type":"refused","time":"2000-01-01T00:00:00Z","status":404,"reason":"model_not_found"}`, "",
		}, got)
		// The stream outlives the limits of the port: it has a comment in each silence.
		begin := time.Now()
		for time.Since(begin) < 10*time.Minute {
			require.Equal(t, []string{": ping", ""}, lines(t, body, 2))
		}
		s.close(t, resp)

		s.log.Add(events.Event{Type: events.Awake, Model: "m"})
		resp = s.open(t, "Last-Event-ID", id)
		body = bufio.NewReader(resp.Body)
		require.Equal(t, "event: awake", lines(t, body, 4)[3])
		go func() { _ = s.server.Shutdown(t.Context()) }()
		_, err := io.ReadAll(body)
		require.NoError(t, err, "the end of the router ends the stream")
		require.NoError(t, resp.Body.Close())
		synctest.Wait()
		require.Zero(t, s.log.Readers())
	})
}

// A client that does not read, and one that is gone without a word, free their places.
func TestAClientThatDoesNotReadLosesItsStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := startEvents(t)
		resp := s.open(t)
		defer resp.Body.Close()
		for range 1000 { // more than the connection and the client keep
			s.log.Add(events.Event{Type: events.Held, Model: strings.Repeat("m", 200)})
		}
		synctest.Wait()
		require.Equal(t, 1, s.log.Readers())
		time.Sleep(eventWrite + eventPing)
		synctest.Wait()
		require.Zero(t, s.log.Readers())
	})
}

func TestAHeadOfEventsEnds(t *testing.T) {
	t.Parallel()
	log := events.NewLog()
	h := Handler(Deps{Maps: sitemap.NewStore("a", nil), Metrics: prometheus.NewRegistry(), Events: log, Log: zerolog.Nop()})
	w := ask(t, h, http.MethodHead, "/v1/events", "")
	require.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
	require.Zero(t, log.Readers())
}

func TestWhoMayReadEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tokens  []string
		headers []string
		readers int // allowed
		status  int
		code    string
	}{
		"no token is needed":     {nil, nil, 1, 200, ""},
		"with the token":         {[]string{"t"}, []string{"Authorization", "Bearer t"}, 1, 200, ""},
		"without the token":      {[]string{"t"}, nil, 1, 401, "unauthorized"},
		"the own page":           {nil, []string{"Sec-Fetch-Site", "same-origin"}, 1, 200, ""},
		"a page of another site": {nil, []string{"Sec-Fetch-Site", "cross-site"}, 1, 403, "cross_origin"},
		"a page of another port": {nil, []string{"Sec-Fetch-Site", "same-site"}, 1, 403, "cross_origin"},
		"too many":               {nil, nil, 0, 503, "too_many_readers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := startEvents(t, c.tokens...)
				s.log.Allow(c.readers)
				resp := s.open(t, c.headers...)
				require.Equal(t, c.status, resp.StatusCode)
				if c.code != "" {
					text, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					require.Contains(t, string(text), c.code)
				}
				s.close(t, resp)
			})
		})
	}
}
