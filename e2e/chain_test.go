// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// beforeEachPicker runs a test with each gateway of testdata/chains.
func beforeEachPicker(t *testing.T, test func(t *testing.T, gateway string)) {
	t.Helper()
	for _, gateway := range gateways {
		t.Run(gateway, func(t *testing.T) {
			t.Parallel()
			test(t, gateway)
		})
	}
}

// hold sends requests to the sleeping model m, wakes it after some keepalives, and returns when
// an agent is there that serves it.
func (s *site) hold(requests int, send func(), engine string) *agent {
	s.t.Helper()
	send()
	s.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(requests))
	time.Sleep(someKeepalives)
	return s.register(hello("a", engine, 8, "m"))
}

// Holdgate's filter first, a picker's second. Held and warm, relayed and native, with trailers
// and up to 1.5 MB, each body reaches the engine once, byte for byte, and passes the picker
// once.
func TestBeforeAPickerAnEngineGetsEachBodyOnce(t *testing.T) {
	shapes := bodyShapes(33, 64<<10+1, 1<<20+1<<19)
	body := func(n int) string { return paddedBody("m", n) }
	beforeEachPicker(t, func(t *testing.T, gateway string) {
		t.Helper()
		e := newExactEngine(t, nil)
		c := startChain(t, gateway, e.addr, "--wake-keepalive", "100ms", "--queue-depth", "100", "--drain-timeout", "1s")
		for _, keepalives := range []string{"on", "off"} {
			var held map[bodyShape]<-chan result
			a := c.hold(len(shapes), func() { held = c.sendShapes(chatPath, shapes, body, "X-Wake-Keepalive", keepalives) }, e.addr)
			requireAnswered(t, http.StatusOK, held)
			requireExact(t, e, shapes, body)
			if keepalives == "off" {
				requireAnswered(t, http.StatusOK, c.sendShapes(chatPath, shapes, body))
				requireExact(t, e, shapes, body)
			}
			c.inUse(0)
			a.leave()
			c.asleep("m")
		}
		withTrailers := 0
		for _, b := range shapes {
			if b.trailers && b.http2 {
				withTrailers++
			}
		}
		// The picker also sees what Holdgate answers itself, to requests that it never had.
		counts := c.picker.Counts()
		require.Equal(t, 3*len(shapes), counts.Requests)
		require.Equal(t, 3*len(shapes), counts.Answers)
		require.GreaterOrEqual(t, counts.Strangers, len(shapes)+2*withTrailers, "the relayed ones")
		c.atRest()
	})
}

// streamOf returns an event stream of n bytes or a few more.
func streamOf(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "data: {\"n\":%d,\"text\":%q}\n\n", i, strings.Repeat("x", 1000))
	}
	return b.String()
}

// What the client gets of a stream, and when the picker names a pod that is not there, has no
// endpoint, or sheds.
func TestBeforeAPickerWhatTheClientGets(t *testing.T) {
	stream := streamOf(130 << 10)
	beforeEachPicker(t, func(t *testing.T, gateway string) {
		t.Helper()
		e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Context().Value(requestBody{}).(string), `"stream":true`) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, stream)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"answer":true}`)
		})
		c := startChain(t, gateway, e.addr(), "--wake-keepalive", "100ms", "--drain-timeout", "1s")
		ask := func(stream bool) result { return c.post(chatPath, chatBody("m", stream)) }
		var held, silent, events <-chan result
		a := c.hold(3, func() {
			held = c.start(t.Context(), chatPath, chatBody("m", false))
			silent = c.start(t.Context(), chatPath, chatBody("m", true), "X-Wake-Keepalive", "off")
			events = c.start(t.Context(), chatPath, chatBody("m", true))
		}, e.addr())
		require.Equal(t, `{"answer":true}`, strings.TrimLeft((<-held).body, " "))
		require.True(t, stream == (<-silent).body)                                           //nolint:testifylint // Equal would print 130 KB
		require.True(t, stream == strings.ReplaceAll((<-events).body, ": keep-alive\n", "")) //nolint:testifylint // Equal would print 130 KB
		require.True(t, stream == ask(true).body)                                            //nolint:testifylint // Equal would print 130 KB

		// A request that does not wait has the picker's own answer, or the gateway's.
		c.picker.Name()
		r := ask(false)
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Equal(t, "picker: no endpoint", r.body, "no retry sees it")
		c.picker.Name(c.dead)
		r = ask(false)
		if gateway == "istio" { // its retries take another endpoint of the pool
			require.Equal(t, http.StatusOK, r.status, r.body)
		} else {
			require.Equal(t, http.StatusServiceUnavailable, r.status)
			require.Contains(t, r.body, "upstream connect error")
		}
		c.picker.Shed(true)
		r = ask(false)
		require.Equal(t, http.StatusTooManyRequests, r.status)
		require.Equal(t, "picker: too many requests", r.body)
		a.leave()
		c.asleep("m")

		// A held one that has had a keepalive is held again, until the picker has an endpoint.
		// Only what it sheds has the error, in JSON.
		a = c.hold(1, func() { held = c.start(t.Context(), chatPath, chatBody("m", false)) }, e.addr())
		r = <-held
		require.Equal(t, http.StatusOK, r.status)
		require.JSONEq(t, `{"error":{"code":"backend_error","message":"the engine answered with status 429","source":"engine"}}`, r.body)
		c.picker.Shed(false)
		a.leave()
		c.asleep("m")
		for _, none := range []string{"no endpoint", "a pod that is not there"} {
			c.picker.Name()
			if none != "no endpoint" {
				c.picker.Name("127.0.0.1:1")
			}
			before := c.picker.Counts().Requests
			a = c.hold(1, func() { held = c.start(t.Context(), chatPath, chatBody("m", false)) }, e.addr())
			c.eventually("it came to the picker", func() bool { return c.picker.Counts().Requests > before })
			c.picker.Name(e.addr())
			r = <-held
			require.Equal(t, http.StatusOK, r.status)
			require.Equal(t, `{"answer":true}`, strings.TrimLeft(r.body, " "), none)
			a.leave()
			c.asleep("m")
		}
		c.atRest()
	})
}

// running is an answer whose first event has come.
type running struct {
	resp *http.Response
	seen string
}

// runs sends a request and reads its answer until the first event.
func (s *site) runs(until string) running {
	s.t.Helper()
	resp, err := s.http.Do(s.request(s.t.Context(), http.MethodPost, chatPath, chatBody("m", true), "X-Wait", until))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(s.t, http.StatusOK, resp.StatusCode)
	r := running{resp: resp}
	for !strings.HasSuffix(r.seen, "data: 1\n\n") {
		one := make([]byte, 1)
		_, err := io.ReadFull(resp.Body, one)
		require.NoError(s.t, err)
		r.seen += string(one)
	}
	return r
}

// What kill -9 of the picker and of Holdgate does to answers that run.
func TestBeforeAPickerThatIsKilled(t *testing.T) {
	beforeEachPicker(t, func(t *testing.T, gateway string) {
		t.Helper()
		finish := map[string]chan struct{}{"first": make(chan struct{}), "second": make(chan struct{})}
		e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if wait := r.Header.Get("X-Wait"); wait != "" {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: 1\n\n")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-finish[wait]:
				case <-r.Context().Done():
				}
			}
			_, _ = io.WriteString(w, "data: 2\n\n")
		})
		c := newChain(t)
		listen, mapFile := closedPort(t), filepath.Join(c.dir, "map.json")
		require.NoError(t, os.WriteFile(mapFile, []byte(testMap), 0o600))
		serve := start(t, "serve", "--site-id", "here", "--destination", "route", "--relay", "http://"+listen, "--extproc-listen", "unix://"+c.dir+"/extproc.sock",
			"--agents-listen", "unix://"+c.dir+"/agents.sock", "--admin-listen", "127.0.0.1:0", "--map-file", mapFile, "--wake-keepalive", "100ms")
		serve.waitLog("holdgate is ready")
		socket := filepath.Join(c.dir, "picker.sock")
		picker := startPicker(t, socket, e.addr())
		c.runChain(gateway, listen, e.addr())
		begun := make(chan running, 1)
		go func() { begun <- c.runs("first") }()
		serve.waitLog("request held")
		time.Sleep(someKeepalives)
		start(t, "agent", "--router", "unix://"+c.dir+"/agents.sock", "--engine", "custom", "--backend-url", "http://"+e.addr(),
			"--model", "m", "--capability", "llm", "--capacity", "8")
		relayed := <-begun
		require.Contains(t, relayed.seen, "keep-alive")
		native := c.runs("first")
		require.NotContains(t, native.seen, "keep-alive")

		// All answers pass the picker, those of Holdgate, too.
		require.NoError(t, picker.cmd.Process.Kill())
		require.Error(t, picker.ends())
		for name, r := range map[string]running{"relayed": relayed, "native": native} {
			rest, err := io.ReadAll(r.resp.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, name)
			require.NotContains(t, string(rest), "data: 2", name)
		}
		for _, model := range []string{"m", "unknown"} {
			require.Equal(t, http.StatusInternalServerError, c.post(chatPath, chatBody(model, false)).status, model)
		}
		close(finish["first"])
		require.NoError(t, os.Remove(socket))
		startPicker(t, socket, e.addr())
		c.eventually("the gateway reaches it again", func() bool { return c.post(chatPath, chatBody("m", false)).status == http.StatusOK })

		// What Envoy carries does not need Holdgate.
		native = c.runs("second")
		require.NoError(t, serve.cmd.Process.Kill())
		require.Error(t, serve.ends())
		close(finish["second"])
		rest, err := io.ReadAll(native.resp.Body)
		require.NoError(t, err)
		require.Equal(t, "data: 2\n\n", string(rest))
		require.Equal(t, http.StatusInternalServerError, c.post(chatPath, chatBody("m", false)).status)
	})
}
