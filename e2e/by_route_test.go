// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const throughGateway = "http://GATEWAY"

// someKeepalives is the time of some keepalives of these tests. A request that has one is
// relayed.
const someKeepalives = 350 * time.Millisecond

// inUse waits until so many slots of agent a are taken.
func (s *site) inUse(slots int) {
	s.t.Helper()
	s.metric(`hivenet_agent_slots_in_use{agent_id="a"}`, strconv.Itoa(slots))
}

// requireNoneOfOurs requires that a request has no header that is between the router and
// Envoy.
func requireNoneOfOurs(t *testing.T, header http.Header) {
	t.Helper()
	for name := range header {
		require.False(t, strings.HasPrefix(name, "X-Holdgate-") || strings.HasPrefix(name, "X-Wake-"), name)
	}
}

// A gateway routes the requests; the router only says when. Warm and held, relayed and
// native, each body reaches the engine once, byte for byte, and with the id in the answer.
func TestByRouteAnEngineGetsEachBodyOnce(t *testing.T) {
	shapes := bodyShapes(33, 16<<10, 64<<10+1, 1<<20+1<<19)
	withTrailers := 0 // which Envoy passes on over HTTP/2 alone
	for _, b := range shapes {
		if b.trailers && b.http2 {
			withTrailers++
		}
	}
	body := func(n int) string { return paddedBody("m", n) }
	for name, headers := range map[string][]string{"relayed": nil, "native": {"X-Wake-Keepalive", "off"}} {
		t.Run(name, func(t *testing.T) {
			e := newExactEngine(t, nil)
			s := startBehindEnvoyGateway(t, e.addr, envoyGatewayLog, "--relay", throughGateway, "--wake-keepalive", "100ms", "--queue-depth", "100")
			held := s.sendShapes(chatPath, shapes, body, headers...)
			s.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(len(shapes)))
			time.Sleep(someKeepalives)
			s.register(hello("a", e.addr, 8, "m"))
			requireAnswered(t, http.StatusOK, held)
			e.mu.Lock()
			relayed := 0
			for _, q := range e.requests {
				if q.header.Get("Accept-Encoding") == "identity" { // what the relay asks for
					relayed++
				}
			}
			e.mu.Unlock()
			if headers == nil {
				require.Len(t, shapes, relayed)
			} else {
				require.Equal(t, withTrailers, relayed)
			}
			requireExact(t, e, shapes, body)
			requireAnswered(t, http.StatusOK, s.sendShapes(chatPath, shapes, body, headers...))
			requireExact(t, e, shapes, body)
			s.inUse(0)
			s.atRest()
		})
	}
}

func TestByRouteTheEngineGetsTheClientsRequest(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("models: {m: {aliases: [other]}}"), 0o600))
	e := newEngine(t, nil)
	s := startBehindEnvoyGateway(t, e.addr(), "", "--relay", throughGateway, "--wake-keepalive", "100ms", "--policy-file", policy)
	id := uuid.NewString()
	ask := func() <-chan result {
		return s.start(t.Context(), chatPath+"?a=b&hg_hop=1", chatBody("other", false), "X-Request-Id", id, "X-Custom", "1", "X-Wake-Timeout", "50s", "Authorization", "Bearer k")
	}
	held := ask()
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(someKeepalives)
	s.register(hello("a", e.addr(), 4, "m"))
	for _, how := range []string{"relayed", "warm"} {
		if how == "warm" {
			held = ask()
		}
		r := <-held
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.JSONEq(t, `{"answer":true}`, r.body)
		require.Equal(t, how == "relayed", strings.HasPrefix(r.body, " "))
		got, sent := e.last()
		require.Equal(t, chatBody("m", false), sent, how)
		require.Equal(t, chatPath+"?a=b", got.RequestURI, how)
		require.Equal(t, strings.TrimPrefix(s.url, "http://"), got.Host, how)
		require.Equal(t, []string{"1"}, got.Header.Values("X-Custom"), how)
		require.Equal(t, "Bearer k", got.Header.Get("Authorization"), how)
		require.NoError(t, uuid.Validate(got.Header.Get("X-Request-Id")), how)
		requireNoneOfOurs(t, got.Header)
		if how == "relayed" {
			require.Equal(t, r.header.Get("X-Request-Id"), got.Header.Get("X-Request-Id"), "one id on both ways through the gateway")
		}
	}
	s.atRest()
}

// A held stream has keepalives, and then the engine's events as they come.
func TestByRouteAStreamThatWasHeld(t *testing.T) {
	next := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: {\"n\":%d}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	s := startBehindEnvoyGateway(t, e.addr(), envoyGatewayLog, "--relay", throughGateway, "--wake-keepalive", "100ms")
	resp, err := s.http.Do(s.request(t.Context(), http.MethodPost, chatPath, chatBody("m", true)))
	require.NoError(t, err)
	defer resp.Body.Close()
	const keepalive = ": keep-alive\n"
	first := make([]byte, 2*len(keepalive))
	_, err = io.ReadFull(resp.Body, first)
	require.NoError(t, err)
	require.Equal(t, keepalive+keepalive, string(first))
	s.register(hello("a", e.addr(), 4, "m"))
	s.inUse(1)
	for i := range 3 {
		s.eventually("an event", func() bool {
			line := make([]byte, 1)
			for text := ""; ; text += string(line) {
				if _, err := io.ReadFull(resp.Body, line); err != nil || strings.HasSuffix(text, fmt.Sprintf("data: {\"n\":%d}\n", i)) {
					return err == nil
				}
			}
		})
		next <- struct{}{}
	}
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	s.inUse(0)
	s.atRest()
}

// The gateway's own 503, for which no engine had the request, is no answer: the request is
// held again.
func TestByRouteAGatewayWithoutAnEngine(t *testing.T) {
	at := closedPort(t)
	s := startBehindEnvoyGateway(t, at, "", "--relay", throughGateway, "--wake-keepalive", "100ms")
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(someKeepalives)
	s.register(hello("a", at, 4, "m"))
	s.eventually("a first attempt", func() bool {
		return strings.Contains(s.log.String(), "answered that it did not take the request")
	})
	l, err := net.Listen("tcp", at)
	require.NoError(t, err)
	e := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"answer":true}`)
	})}}
	e.Start()
	t.Cleanup(e.Close)
	r := <-held
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.JSONEq(t, `{"answer":true}`, r.body)
	s.inUse(0)
	s.atRest()
}

func TestByRouteATicketIsGoodForOneRequest(t *testing.T) {
	e := newEngine(t, nil)
	var url atomic.Pointer[string]
	b := startBetween(t, func() string { return *url.Load() })
	s := startBehindEnvoyGateway(t, e.addr(), "", "--relay", b.URL, "--wake-keepalive", "100ms", "--wake-late-error", "body")
	url.Store(&s.url)
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(someKeepalives)
	a := s.register(hello("a", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-held).status)
	require.Equal(t, 1, e.count())

	const name = "X-Holdgate-Pass"
	head, body := b.last(t)
	refused := func(reason, body string, headers ...string) {
		t.Helper()
		r := s.post(chatPath, body, headers...)
		require.Equal(t, http.StatusForbidden, r.status, r.body)
		require.Contains(t, r.body, `"code":"pass_invalid"`)
		require.NotContains(t, r.body, head.Get(name))
		s.metric(`hivenet_passes_rejected_total{reason="`+reason+`"}`, "1")
	}
	refused("used", body, name, head.Get(name))
	refused("forged", body, name, "forged")
	require.Equal(t, 1, e.count(), "the engine got none of them")

	// A request that was changed on its way back does not pass.
	a.leave()
	s.eventually("the agent has left", func() bool { return !strings.Contains(s.metrics(), `hivenet_agent_slots{agent_id="a"}`) })
	b.mu.Lock()
	b.change = func(string) string { return chatBody("x", false) }
	b.mu.Unlock()
	held = s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(someKeepalives)
	s.register(hello("b", e.addr(), 4, "m"))
	require.Contains(t, (<-held).body, `"code":"pass_invalid"`)
	s.metric(`hivenet_passes_rejected_total{reason="mismatch"}`, "1")
	require.Equal(t, 1, e.count())
	s.atRest()
}

// Without the URL of the gateway holds are silent, and the held request itself goes on.
func TestByRouteWithoutTheGatewaysURL(t *testing.T) {
	e := newEngine(t, nil)
	s := startBehindEnvoyGateway(t, e.addr(), "", "--wake-keepalive", "50ms")
	require.Contains(t, s.log.String(), "get no keepalives: set --relay to the URL of the gateway's listener for clients")
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(200 * time.Millisecond)
	s.register(hello("a", e.addr(), 4, "m"))
	r := <-held
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Equal(t, `{"answer":true}`, r.body, "without keepalives")
	s.atRest()
}

// A gateway with our access log frees the slots. Without it there is nothing that could, so
// requests have none.
func TestByRouteSlots(t *testing.T) {
	for name, log := range map[string]string{"with the log": envoyGatewayLog, "without": ""} {
		t.Run(name, func(t *testing.T) {
			finish := make(chan struct{})
			e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Wait") != "" {
					<-finish
				}
				_, _ = io.WriteString(w, "ok")
			})
			s := startBehindEnvoyGateway(t, e.addr(), log)
			s.register(hello("a", e.addr(), 1, "m"))
			// The log opens with its first entry.
			require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false)).status)
			const told = "an access log comes from this Envoy"
			if log != "" {
				s.eventually(told, func() bool { return strings.Contains(s.log.String(), told) })
			}
			require.Contains(t, s.get("http://"+s.app.AdminAddr()+"/v1/status"), fmt.Sprintf(`"log":%v}`, log != ""), "the status lists the gateway")
			first := s.start(t.Context(), chatPath, chatBody("m", false), "X-Wait", "1")
			s.eventually("it runs", func() bool { return e.count() == 2 })
			second := s.start(t.Context(), chatPath, chatBody("m", false))
			if log != "" {
				s.inUse(1)
				s.metric(`hivenet_queue_depth{model="m"}`, "1")
			} else {
				require.Equal(t, http.StatusOK, (<-second).status)
				s.inUse(0)
				require.Equal(t, 1, strings.Count(s.log.String(), "no access log of this gateway has come yet"))
				require.NotContains(t, s.log.String(), told)
			}
			close(finish)
			require.Equal(t, http.StatusOK, (<-first).status)
			if log != "" {
				require.Equal(t, http.StatusOK, (<-second).status)
			}
			s.inUse(0)
			s.atRest()
		})
	}
}

// block returns a block of a page of the docs that begins with a text.
func block(t *testing.T, page, language, begins string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "```"+language+"\n"+begins)
	require.True(t, found, "%s has no block %s", page, begins)
	inside, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	return begins + inside
}

// The page's own settings, word for word but for the addresses: readiness through the
// gateway's listener, a held request, and the end of Holdgate during an answer.
func TestPlainEnvoy(t *testing.T) {
	const page = "gateways/plain-envoy.md"
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listen, engine := closedPort(t), closedPort(t)
	called := make(chan struct{}, 100)
	scaler := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called <- struct{}{} }))
	t.Cleanup(scaler.Close)
	_, listenPort, _ := net.SplitHostPort(listen)
	_, enginePort, _ := net.SplitHostPort(engine)
	here := strings.NewReplacer(
		"127.0.0.1:8080", listen, "port_value: 8080", "port_value: "+listenPort, "port_value: 8000", "port_value: "+enginePort,
		"/run/holdgate", dir, "https://scaler.example.com", scaler.URL,
	)
	config := filepath.Join(dir, "serve.yaml")
	require.NoError(t, os.WriteFile(config, []byte(here.Replace(block(t, page, "yaml", "backends:"))), 0o600))
	line := strings.Fields(here.Replace(block(t, page, "", "holdgate serve")))
	line[len(line)-1] = config
	serve := start(t, append(line[1:], "--extproc-listen", "unix://"+dir+"/extproc.sock", "--agents-listen", "unix://"+dir+"/agents.sock",
		"--admin-listen", "127.0.0.1:0", "--wake-keepalive", "200ms")...)
	serve.waitLog("holdgate is ready")
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t)}
	s.runGateway(dir, here.Replace(block(t, page, "yaml", "static_resources:")), listen, engine)

	held := map[string]<-chan result{}
	for _, keepalive := range []string{"on", "off"} {
		held[keepalive] = s.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", keepalive)
	}
	<-called
	time.Sleep(someKeepalives)
	begun, finish := make(chan struct{}, 1), make(chan struct{})
	l, err := net.Listen("tcp", engine)
	require.NoError(t, err)
	e := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%d of %d bytes", len(body), r.ContentLength)
		if r.Header.Get("X-Wait") != "" {
			_ = http.NewResponseController(w).Flush()
			begun <- struct{}{}
			<-finish
			_, _ = io.WriteString(w, ", and the end")
		}
	})}}
	e.Start()
	t.Cleanup(e.Close)
	n := len(chatBody("m", false))
	whole := fmt.Sprintf("%d of %d bytes", n, n)
	for keepalive, answer := range held {
		r := <-answer
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, whole, strings.TrimSpace(r.body), keepalive)
		require.Equal(t, keepalive == "on", strings.HasPrefix(r.body, " "), "only the first is relayed")
	}
	require.Equal(t, whole, s.post(chatPath, chatBody("m", false)).body)

	// Without Holdgate what runs ends as usual, and warm traffic goes on.
	running := s.start(t.Context(), chatPath, chatBody("m", false), "X-Wait", "1")
	<-begun
	require.NoError(t, serve.cmd.Process.Kill())
	require.Error(t, serve.ends())
	close(finish)
	r := <-running
	require.NoError(t, r.err)
	require.Equal(t, whole+", and the end", r.body)
	s.eventually("Envoy notices it", func() bool { return s.post(chatPath, chatBody("m", false)).status == http.StatusOK })
	for range 20 {
		r = s.post(chatPath, chatBody("m", false))
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, whole, r.body)
	}
	e.Close()
	r = s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status, "a cold model has the gateway's own error")
	require.NotContains(t, r.body, "router")
}
