// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// namedEngine answers with its name.
func namedEngine(t *testing.T, name string) *engine {
	t.Helper()
	return newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"engine":%q}`, name)
	})
}

// The gateway sends each request where the router says, warm and held, and each body reaches the
// engine once, byte for byte.
func TestPickerAnEngineGetsEachBodyOnce(t *testing.T) {
	shapes := slices.DeleteFunc(bodyShapes(33, 64<<10+1, 1<<20+1<<19), func(b bodyShape) bool { return b.trailers && b.size > 1<<20 })
	body := func(n int) string { return paddedBody("m", n) }
	for name, p := range pickerShapes {
		t.Run(name, func(t *testing.T) {
			e, other := newExactEngine(t, nil), newExactEngine(t, nil)
			s := startAsPicker(t, p, []string{other.addr, e.addr}, "--relay", throughGateway, "--wake-keepalive", "100ms", "--queue-depth", "100")
			relayed := s.sendShapes(chatPath, shapes, body)
			s.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(len(shapes)))
			time.Sleep(someKeepalives)
			silent := s.sendShapes(chatPath, shapes, body, "X-Wake-Keepalive", "off")
			s.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(2*len(shapes)))
			s.register(hello("a", e.addr, 8, "m"))
			requireAnswered(t, http.StatusOK, relayed)
			requireAnswered(t, http.StatusOK, silent)
			require.Len(t, e.requests, 2*len(shapes))
			requireExact(t, e, slices.Concat(shapes, shapes), body)
			requireAnswered(t, http.StatusOK, s.sendShapes(chatPath, shapes, body))
			requireExact(t, e, shapes, body)
			taken, _ := other.taken()
			require.Empty(t, taken, "no replica is there")
			s.inUse(0)
			s.atRest()
		})
	}
}

// Every replica gets requests, and none that a client names.
func TestPickerTheRouterChooses(t *testing.T) {
	for name, p := range pickerShapes {
		t.Run(name, func(t *testing.T) {
			a, b, stranger := namedEngine(t, "a"), namedEngine(t, "b"), namedEngine(t, "stranger")
			s := startAsPicker(t, p, []string{stranger.addr(), a.addr(), b.addr()})
			s.register(hello("a", a.addr(), 4, "m"))
			s.register(hello("b", b.addr(), 4, "m"))
			const header = "X-Gateway-Destination-Endpoint"
			for range 4 {
				for _, forged := range [][]string{nil, {header, stranger.addr()}, {header, stranger.addr(), header, stranger.addr()}} {
					r := s.post(chatPath, chatBody("m", false), forged...)
					require.Equal(t, http.StatusOK, r.status, r.body)
				}
			}
			require.Positive(t, a.count())
			require.Positive(t, b.count())
			require.Equal(t, 12, a.count()+b.count())
			for _, e := range []*engine{a, b} {
				got, _ := e.last()
				require.Equal(t, []string{e.addr()}, got.Header.Values(header), "without --endpoint-fallbacks")
				requireNoneOfOurs(t, got.Header)
			}
			// What the router does not decide on has no destination.
			r := s.do(s.request(t.Context(), http.MethodGet, "/other", "", header, stranger.addr()))
			if !p.fallback {
				require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
				require.Zero(t, stranger.count())
			}
			s.inUse(0)
			s.atRest()
		})
	}
}

// The gateway restricts a request to some endpoints, by a list or by one string.
func TestPickerHints(t *testing.T) {
	a, b := namedEngine(t, "a"), namedEngine(t, "b")
	s := startAsPicker(t, pickerShapes["original_dst by metadata"], []string{a.addr()}, "--queue-depth", "10")
	held := s.start(t.Context(), chatPath, chatBody("m", false), "X-Hints", hintsHeader(t), "X-Wake-Keepalive", "off")
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", a.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-held).status, "the hint is of the time when the model slept")
	s.register(hello("b", b.addr(), 4, "m"))
	for range 3 {
		for name, hint := range map[string][]string{
			"a list": {"X-Hints", hintsHeader(t, "10.9.9.9:1", b.addr())}, "a string": {"X-Hint", "10.9.9.9:1," + b.addr()},
			"without a port": {"X-Hint", "127.0.0.1"},
		} {
			r := s.post(chatPath, chatBody("m", false), hint...)
			require.Equal(t, http.StatusOK, r.status, r.body)
			if name != "without a port" {
				require.JSONEq(t, `{"engine":"b"}`, r.body, name)
			}
		}
	}
	for name, hint := range map[string][]string{
		"an empty list": {"X-Hints", hintsHeader(t)}, "others": {"X-Hints", hintsHeader(t, "10.9.9.9:1")}, "a name": {"X-Hint", "pod-1:80"},
	} {
		r := s.post(chatPath, chatBody("m", false), hint...)
		require.Equal(t, http.StatusServiceUnavailable, r.status, name)
		require.Contains(t, r.body, `"code":"no_capacity"`, name)
		require.Equal(t, "1", r.header.Get("Retry-After"), name)
	}
	s.inUse(0)
	s.atRest()
}

// An engine that refuses its connection is passed over by a gateway that takes several addresses,
// and the audit log names the one that answered.
func TestPickerFallsBack(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.jsonl")
	dead, b := closedPort(t), namedEngine(t, "b")
	s := startAsPicker(t, pickerShapes["override_host"], []string{dead, b.addr()}, "--endpoint-fallbacks", "2", "--audit-file", audit)
	s.register(hello("a", dead, 4, "m"))
	s.register(hello("b", b.addr(), 4, "m"))
	for range 6 {
		r := s.post(chatPath, chatBody("m", false))
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.JSONEq(t, `{"engine":"b"}`, r.body)
	}
	got, _ := b.last()
	require.Len(t, strings.Split(got.Header.Get("X-Gateway-Destination-Endpoint"), ","), 2)
	s.inUse(0)
	s.atRest()
	s.eventually("the records name b", func() bool {
		text, err := os.ReadFile(audit)
		require.NoError(t, err)
		return strings.Contains(string(text), `"agent_id":"a","upstream":"`+b.addr()+`"`)
	})
}

// A replica may turn out to be the gateway itself.
func TestPickerALoop(t *testing.T) {
	s := startAsPicker(t, pickerShapes["original_dst by header"], []string{closedPort(t)})
	s.register(hello("a", strings.TrimPrefix(s.url, "http://"), 4, "m"))
	for range 2 {
		r := s.post(chatPath, chatBody("m", false))
		require.Equal(t, http.StatusLoopDetected, r.status, r.body)
		require.Contains(t, r.body, `"code":"loop_detected"`)
	}
	s.inUse(0)
}

// A request that is relayed to a replica that refuses its connection is held again.
func TestPickerAHeldRequestWhoseReplicaIsDead(t *testing.T) {
	b := namedEngine(t, "b")
	s := startAsPicker(t, pickerShapes["original_dst by metadata"], []string{b.addr()}, "--relay", throughGateway, "--wake-keepalive", "100ms")
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(someKeepalives)
	s.register(hello("a", closedPort(t), 4, "m"))
	s.eventually("a first attempt", func() bool {
		return strings.Contains(s.log.String(), "answered that it did not take the request")
	})
	s.register(hello("b", b.addr(), 4, "m"))
	r := <-held
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.JSONEq(t, `{"engine":"b"}`, r.body)
	s.inUse(0)
	s.atRest()
}

// Answers do not pass through Holdgate, whatever the filter's modes are.
func TestPickerACrashLeavesRunningAnswersAlone(t *testing.T) {
	p := pickerShapes["original_dst by header"]
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	next := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	config := filepath.Join(dir, "serve.yaml")
	require.NoError(t, os.WriteFile(config, []byte("backends: [{name: b, url: \"http://"+e.addr()+"\", health_path: /, models: [m]}]"), 0o600))
	close(next) // for the health check
	serve := start(t, "serve", "--config", config, "--destination", "endpoint", "--extproc-listen", "unix://"+dir+"/extproc.sock",
		"--agents-listen", "unix://"+dir+"/agents.sock", "--admin-listen", "127.0.0.1:0")
	serve.waitLog("holdgate is ready")
	listen := closedPort(t)
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t)}
	s.runGateway(dir, p.gatewayText(t, e.addr()), listen, e.addr())
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", true)).status, "it is up")

	next = make(chan struct{})
	resp, err := s.http.Do(s.request(t.Context(), http.MethodPost, chatPath, chatBody("m", true)))
	require.NoError(t, err)
	defer resp.Body.Close()
	first := make([]byte, len("data: 0\n\n"))
	_, err = io.ReadFull(resp.Body, first)
	require.NoError(t, err)
	require.NoError(t, serve.cmd.Process.Kill())
	require.Error(t, serve.ends())
	close(next)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "data: 0\n\ndata: 1\n\ndata: 2\n\n", string(first)+string(rest))
}

// A held stream has keepalives, and then the engine's events as they come.
func TestPickerAStreamThatWasHeld(t *testing.T) {
	next := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 2 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	s := startAsPicker(t, pickerShapes["original_dst by header"], []string{e.addr()}, "--relay", throughGateway, "--wake-keepalive", "100ms")
	resp, err := s.http.Do(s.request(t.Context(), http.MethodPost, chatPath, chatBody("m", true)))
	require.NoError(t, err)
	defer resp.Body.Close()
	keepalive := make([]byte, len(": keep-alive\n"))
	_, err = io.ReadFull(resp.Body, keepalive)
	require.NoError(t, err)
	require.Equal(t, ": keep-alive\n", string(keepalive))
	s.register(hello("a", e.addr(), 4, "m"))
	s.inUse(1)
	next <- struct{}{}
	next <- struct{}{}
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "data: 0\n\ndata: 1\n\n", strings.ReplaceAll(string(rest), ": keep-alive\n", ""))
	s.inUse(0)
	s.atRest()
}

// An Envoy before 1.37 ends the stream of a keepalive. The router notices that at the first one,
// and holds silently from then on.
func TestOldEnvoyHoldsAreSilent(t *testing.T) {
	if os.Getenv(oldEnvoy) == "" {
		t.Skip("set " + oldEnvoy + " to an Envoy before 1.37")
	}
	for name, p := range pickerShapes {
		t.Run(name, func(t *testing.T) {
			a := namedEngine(t, "a")
			s := startAsPicker(t, p, []string{a.addr()}, "--relay", throughGateway, "--wake-keepalive", "200ms")
			require.Equal(t, http.StatusInternalServerError, s.post(chatPath, chatBody("m", false)).status)
			const told = "does not take streamed answers"
			s.eventually(told, func() bool { return strings.Contains(s.log.String(), told) })
			held := s.start(t.Context(), chatPath, chatBody("m", false))
			time.Sleep(someKeepalives)
			s.register(hello("a", a.addr(), 4, "m"))
			r := <-held
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Equal(t, `{"engine":"a"}`, r.body)
			require.Equal(t, 1, strings.Count(s.log.String(), told))
			s.inUse(0)
			s.atRest()
		})
	}
}
