// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const every = 300 * time.Millisecond

// events is an engine's stream with everything that has broken clients when keepalives
// came before: ids, pings and comments of its own, retries.
const events = "retry: 10\nid: 1\ndata: {\"n\":1}\n\n: ping\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nid: 2\ndata: {\"n\":2}\n\n"

// shapedEngine answers streams with events and anything else with JSON.
func shapedEngine(t *testing.T) *engine {
	t.Helper()
	var e *engine
	e = newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(e.sent(r), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, events)
			return
		}
		w.Header().Set("Content-Type", "application/json; odd=yes")
		_, _ = fmt.Fprintf(w, "{\n \"path\": %q}\n", r.URL.Path)
	})
	return e
}

// sent returns the body of a request as the engine received it.
func (e *engine) sent(r *http.Request) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, got := range e.requests {
		if got == r {
			return e.bodies[i]
		}
	}
	return ""
}

// answer returns what the engine of shapedEngine answers to a shape.
func (c *shape) answer() string {
	if c.stream {
		return events
	}
	return fmt.Sprintf("{\n \"path\": %q}\n", c.path)
}

// holdAll sends every shape at once and waits until all are held.
func (s *site) holdAll(cases map[string]shape, model string) map[string]<-chan *wire {
	s.t.Helper()
	answers := map[string]<-chan *wire{}
	for name, c := range cases {
		answers[name] = s.send(c.path, c.body)
	}
	s.metric(fmt.Sprintf("hivenet_pending_demand{model=%q}", model), fmt.Sprint(len(cases)))
	return answers
}

// A wake that takes longer than an interval, byte for byte and at the right times.
func TestAWakeOnTheWire(t *testing.T) {
	s := startSite(t, "--wake-keepalive", every.String())
	cases := shapes("m", "", "")
	begin := time.Now()
	answers := s.holdAll(cases, "m")
	time.Sleep(2*every + every/2 - time.Since(begin))
	woken := time.Since(begin)
	s.register(hello("a", shapedEngine(t).addr(), 20, "m"))
	for name, c := range cases {
		w := <-answers[name]
		t.Run(name, func(t *testing.T) {
			w.requireCommittedHead(t, c.stream, every)
			n, rest := w.requireKeepalives(t, c.form, every)
			require.GreaterOrEqual(t, n, 1)
			require.Equal(t, c.answer(), rest, "nothing but whole keepalives before the engine's bytes, and none among them")
			require.True(t, w.whole)
			first := w.at(n*len(c.form) + 1)
			require.Greater(t, first, woken-every, "the answer came before the engine")
			require.Less(t, first, woken+slack)
			for i, p := range w.pieces[1:] {
				require.Less(t, p.at-w.pieces[i].at, every+slack, "a gap")
			}
		})
	}
	s.atRest()
}

// The answer of a wake within the first interval has the engine's own head, and no
// additional byte.
func TestAFastWakeOnTheWire(t *testing.T) {
	s := startSite(t)
	cases := shapes("m", "", "")
	begin := time.Now()
	answers := s.holdAll(cases, "m")
	time.Sleep(every)
	woken := time.Since(begin)
	s.register(hello("a", shapedEngine(t).addr(), 20, "m"))
	for name, c := range cases {
		w := <-answers[name]
		t.Run(name, func(t *testing.T) {
			require.Equal(t, "HTTP/1.1 200 OK", w.status)
			require.Equal(t, c.answer(), w.body)
			require.True(t, w.whole)
			require.Greater(t, w.headAt, woken-every)
			require.Less(t, w.headAt, woken+slack)
			require.Regexp(t, `^hold;dur=\d+, queue;dur=\d+$`, w.head["server-timing"])
			require.Empty(t, w.head["x-accel-buffering"])
			if c.stream {
				require.Equal(t, "text/event-stream", w.head["content-type"])
			} else {
				require.Equal(t, "application/json; odd=yes", w.head["content-type"])
				require.Equal(t, fmt.Sprint(len(c.answer())), w.head["content-length"])
			}
		})
	}
	s.atRest()
}

// wakingMap places a model of each kind that is held for 700 ms.
const wakingMap = `{"placements": [
	{"model": "w", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "700ms"},
	{"model": "w", "kind": "embedding", "site": "here", "scale_from_zero": true, "hold_budget": "700ms"},
	{"model": "w", "kind": "rerank", "site": "here", "scale_from_zero": true, "hold_budget": "700ms"}]}`

const holdFor = 700 * time.Millisecond

// A hold whose budget ends, byte for byte and at the right times.
func TestAHoldThatExpiresOnTheWire(t *testing.T) {
	const message = "model w is waking up; retry in 30 seconds"
	for name, flags := range map[string][]string{
		"before a keepalive": nil,
		"in the body":        {"--wake-keepalive", every.String()},
		"cut":                {"--wake-keepalive", every.String(), "--wake-late-error", "abort"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t, flags...)
			require.Equal(t, http.StatusOK, s.putMap(wakingMap).status)
			cases := shapes("w", "overloaded_error", waking)
			answers := map[string]<-chan *wire{}
			for name, c := range cases {
				answers[name] = s.send(c.path, c.body)
			}
			for shapeName, c := range cases {
				w := <-answers[shapeName]
				t.Run(shapeName, func(t *testing.T) {
					require.GreaterOrEqual(t, w.endAt, holdFor)
					require.Less(t, w.endAt, holdFor+slack)
					if flags == nil {
						require.Equal(t, "HTTP/1.1 503 Service Unavailable", w.status)
						require.Equal(t, "30", w.head["retry-after"])
						require.Equal(t, "application/json", w.head["content-type"])
						require.GreaterOrEqual(t, w.headAt, holdFor, "not a byte before the end")
						require.Equal(t, c.error("model_waking", message), w.body)
						require.True(t, w.whole)
						return
					}
					w.requireCommittedHead(t, c.stream, every)
					n, rest := w.requireKeepalives(t, c.form, every)
					require.GreaterOrEqual(t, n, 1)
					require.LessOrEqual(t, n, 2)
					require.Equal(t, name != "cut", w.whole)
					switch {
					case c.stream:
						require.Equal(t, c.event("model_waking", message), rest)
					default:
						require.Equal(t, c.error("model_waking", message), rest)
					}
				})
			}
			s.metric(`hivenet_wake_holds_total{outcome="expired"}`, fmt.Sprint(len(cases)))
			s.metric(`hivenet_pending_demand{model="w"}`, "0")
			s.eventually("no request in flight", func() bool { return s.app.InFlight() == 0 })
		})
	}
}

// An engine's own error after the wake, byte for byte: with its status if that can
// still be sent, otherwise in the error format of the API.
func TestAnEnginesErrorOnTheWire(t *testing.T) {
	const text = `{"error":{"message":"the prompt is \"long\"","code":"too_long"}}`
	for name, flags := range map[string][]string{
		"before a keepalive": nil,
		"in the body":        {"--wake-keepalive", every.String()},
		"cut":                {"--wake-keepalive", every.String(), "--wake-late-error", "abort"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t, flags...)
			e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(http.StatusTooManyRequests)
				_, _ = io.WriteString(w, text)
			})
			cases := shapes("m", "rate_limit_error", `"engine"`)
			answers := s.holdAll(cases, "m")
			if flags != nil {
				time.Sleep(every + every/2)
			}
			s.register(hello("a", e.addr(), 20, "m"))
			for shapeName, c := range cases {
				w := <-answers[shapeName]
				t.Run(shapeName, func(t *testing.T) {
					if flags == nil {
						require.Equal(t, "HTTP/1.1 429 Too Many Requests", w.status)
						require.Equal(t, "7", w.head["retry-after"])
						require.Equal(t, text, w.body)
						return
					}
					w.requireCommittedHead(t, c.stream, every)
					n, rest := w.requireKeepalives(t, c.form, every)
					require.GreaterOrEqual(t, n, 1)
					require.Equal(t, name != "cut", w.whole)
					switch {
					case c.stream:
						require.Equal(t, c.event("too_long", `the prompt is "long"`), rest)
					default:
						require.Equal(t, text, rest)
					}
				})
			}
			s.atRest()
		})
	}
}

// An engine's 400 with an empty body is passed on unchanged.
func TestAnEmptyErrorIsPassedOn(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) })
	cases := shapes("m", "", "")
	answers := s.holdAll(cases, "m")
	s.register(hello("a", e.addr(), 20, "m"))
	for name := range cases {
		w := <-answers[name]
		require.Equal(t, "HTTP/1.1 400 Bad Request", w.status, name)
		require.Empty(t, w.body, name)
		require.Equal(t, "0", w.head["content-length"], name)
	}
	r := s.post(chatPath, chatBody("m", false)) // and warm
	require.Equal(t, http.StatusBadRequest, r.status)
	require.Empty(t, r.body)
	s.atRest()
}
