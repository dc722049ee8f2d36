// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sdk is an official client, with a test of its own.
type sdk struct {
	t       *testing.T
	command []string
}

// sdks runs each for every official client. Without Node its client is skipped with a
// message.
func sdks(t *testing.T, s *site, each func(c sdk)) {
	t.Helper()
	for _, api := range []string{"openai", "anthropic"} {
		t.Run(api+" python", func(t *testing.T) { each(pythonSDK(t, s, api)) })
	}
	for _, api := range []string{"openai", "anthropic"} {
		t.Run(api+" node", func(t *testing.T) {
			each(sdk{t, []string{node(t), filepath.Join("clients", "node", "chat.mjs"), "--api", api, "--base-url", s.url}})
		})
	}
}

func pythonSDK(t *testing.T, s *site, api string) sdk {
	t.Helper()
	return sdk{t, []string{python(t), filepath.Join("clients", "python", "chat.py"), "--api", api, "--base-url", s.url}}
}

// run starts a client in the background and returns the line that it prints. The line
// is empty if the script ends in any other way than its two normal ones.
func (c sdk) run(args ...string) <-chan map[string]any {
	t := c.t
	t.Helper()
	command := append(slices.Clone(c.command), args...)
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	done := make(chan map[string]any, 1)
	var ended sync.WaitGroup
	t.Cleanup(ended.Wait)
	ended.Go(func() {
		out, err := cmd.Output()
		var line map[string]any
		if json.Unmarshal(out, &line) != nil || (err == nil) != (line["error"] == nil) {
			line = map[string]any{"odd": fmt.Sprintf("%v %s", err, out)}
		}
		done <- line
	})
	return done
}

// raises runs a client that must raise an error, and returns its line.
func (c sdk) raises(args ...string) map[string]any {
	t := c.t
	t.Helper()
	line := <-c.run(args...)
	require.NotEmpty(t, line["error"], "it took the failure for an answer: %v", line)
	return line
}

// held waits until a client's request is held. The start of the client alone takes
// seconds on a busy machine.
func (s *site) held(model string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return s.counter(`hivenet_pending_demand{model="`+model+`"}`) == 1
	}, time.Minute, 10*time.Millisecond, "the client's request is held")
}

// asleep waits until the model has no replica left.
func (s *site) asleep(model string) {
	s.t.Helper()
	s.eventually("the agent has left", func() bool {
		return !strings.Contains(s.do(s.request(s.t.Context(), http.MethodGet, "/v1/models/"+model, "")).body, `"warm"`)
	})
}

// answerBothAPIs answers as an engine that supports both protocols. Its streams have
// the ids, comments and pings that have broken clients.
func answerBothAPIs(e **engine) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		stream := strings.Contains(strings.ReplaceAll((*e).sent(r), " ", ""), `"stream":true`)
		w.Header().Set("Content-Type", "application/json")
		if stream {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		switch {
		case r.URL.Path == "/v1/messages" && stream:
			for i, event := range []string{
				`{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}`,
				`{"type":"ping"}`,
				`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}}`,
				`{"type":"content_block_stop","index":0}`,
				`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}`,
				`{"type":"message_stop"}`,
			} {
				kind, _, _ := strings.Cut(strings.TrimPrefix(event, `{"type":"`), `"`)
				_, _ = fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", kind, i, event)
			}
		case r.URL.Path == "/v1/messages":
			_, _ = io.WriteString(w, `{"id":"x","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Hello"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":2}}`)
		case stream:
			for i, text := range []string{"Hel", "lo"} {
				_, _ = fmt.Fprintf(w, "id: %d\ndata: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n: engine\n", i, text)
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		default:
			_, _ = io.WriteString(w, `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}]}`)
		}
	}
}

func bothAPIsEngine(t *testing.T) *engine {
	t.Helper()
	var e *engine
	e = newEngine(t, func(w http.ResponseWriter, r *http.Request) { answerBothAPIs(&e)(w, r) })
	return e
}

// bothWays runs f for the client with and without streaming.
func (c sdk) bothWays(f func(c sdk)) {
	for name, flags := range map[string][]string{"streaming": {"--stream"}, "not streaming": nil} {
		c.t.Run(name, func(t *testing.T) { f(sdk{t, append(slices.Clone(c.command), flags...)}) })
	}
}

// By default every client raises on a late error: a stream has the error's message, and
// a plain answer, which a client would take for a success, is cut.
func TestClientsRaiseOnALateError(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "100ms")
	sdks(t, s, func(c sdk) {
		c.bothWays(func(c sdk) {
			line := c.raises("--model", "short")
			if slices.Contains(c.command, "--stream") {
				require.Contains(c.t, line["message"], "model short is waking up; retry in 30 seconds")
			}
		})
	})
	s.metric(`hivenet_pending_demand{model="short"}`, "0")
	s.atRest()
}

// Every client that streams raises on a late error that cuts the connection.
func TestClientsThatStreamRaiseWhenALateErrorCuts(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "100ms", "--wake-late-error", "abort")
	sdks(t, s, func(c sdk) { c.raises("--stream", "--model", "short") })
	s.atRest()
}

// Clients raise on an engine's error after keepalives as well.
func TestClientsRaiseOnAnEnginesLateError(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "100ms")
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"type":"BadRequestError","code":400,"message":"the prompt is too long"}}`)
	})
	sdks(t, s, func(c sdk) {
		t := c.t
		answer := c.run("--model", "m")
		s.held("m")
		time.Sleep(150 * time.Millisecond) // a keepalive
		a := s.register(hello("a", e.addr(), 4, "m"))
		line := <-answer
		require.NotEmpty(t, line["error"], "it took the failure for an answer: %v", line)
		a.leave()
		s.asleep("m")
	})
	s.atRest()
}

// An error before the first keepalive has its real status in every client.
func TestClientsSeeTheStatusOfAnEarlyError(t *testing.T) {
	s := startSite(t)
	sdks(t, s, func(c sdk) {
		line := c.raises("--model", "short")
		require.InDelta(c.t, http.StatusServiceUnavailable, line["status"], 0, line)
		require.Contains(c.t, line["message"], "waking up")
	})
	s.atRest()
}

// Python's clients retry by themselves after a cut connection: a model that wakes after
// the first attempt answers the second. Node's clients consider the request answered
// once the head has arrived, and only raise.
func TestClientsComeBackAfterACut(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "100ms")
	for _, api := range []string{"openai", "anthropic"} {
		t.Run(api, func(t *testing.T) {
			expired := s.counter(`hivenet_wake_holds_total{outcome="expired"}`)
			answer := pythonSDK(t, s, api).run("--model", "short", "--max-retries", "5")
			require.Eventually(t, func() bool {
				return s.counter(`hivenet_wake_holds_total{outcome="expired"}`) > expired
			}, time.Minute, 10*time.Millisecond, "the first attempt is cut")
			a := s.register(hello("a", bothAPIsEngine(t).addr(), 4, "short"))
			line := <-answer
			require.Equal(t, "Hello", line["text"], line)
			a.leave()
			s.asleep("short")
		})
	}
	s.atRest()
}

// counter returns the current value of a series.
func (s *site) counter(series string) float64 {
	s.t.Helper()
	for line := range strings.Lines(s.metrics()) {
		if text, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			_, err := fmt.Sscan(text, &v)
			require.NoError(s.t, err)
			return v
		}
	}
	require.Fail(s.t, "no series "+series)
	return 0
}

// Keepalives before an answer with ids, comments and pings of its own break no client:
// they have one newline, and none comes after the first byte.
func TestClientsReadAnAnswerBehindKeepalives(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "100ms")
	sdks(t, s, func(c sdk) {
		c.bothWays(func(c sdk) {
			t := c.t
			answer := c.run("--model", "m")
			s.held("m")
			time.Sleep(350 * time.Millisecond) // some keepalives
			a := s.register(hello("a", bothAPIsEngine(t).addr(), 4, "m"))
			line := <-answer
			require.Equal(t, "Hello", line["text"], line)
			a.leave()
			s.asleep("m")
		})
	})
	s.atRest()
}

// Clients that give up on a silent connection after 2 s wait for 5 s nevertheless,
// because their headers declare the timeout.
func TestClientsWithAShortReadTimeoutAreKept(t *testing.T) {
	s := startSite(t)
	for api, path := range map[string]string{"openai": chatPath, "anthropic": "/v1/messages"} {
		t.Run(api, func(t *testing.T) {
			answer := pythonSDK(t, s, api).run("--model", "m", "--timeout", "2", "--header", "x-stainless-timeout:600")
			s.held("m")
			time.Sleep(5 * time.Second)
			e := bothAPIsEngine(t)
			a := s.register(hello("a", e.addr(), 4, "m"))
			line := <-answer
			require.Equal(t, "Hello", line["text"], line)
			got, _ := e.last()
			require.Equal(t, path, got.URL.Path)
			require.Regexp(t, `^2(\.0)?$`, got.Header.Get("X-Stainless-Read-Timeout"), "the client says it by itself")
			a.leave()
			s.asleep("m")
		})
	}
	s.atRest()
}

// A total timeout that a client declares ends the hold a second earlier, with an error
// that the client can read.
func TestAClientsTotalEndsTheHoldBeforeIt(t *testing.T) {
	s := startSite(t)
	line := pythonSDK(t, s, "anthropic").raises("--model", "m", "--header", "x-stainless-timeout:2", "--header", "x-stainless-read-timeout:600")
	require.InDelta(t, http.StatusServiceUnavailable, line["status"], 0, line)
	require.Contains(t, line["message"], "model m is waking up")
	s.metric(`hivenet_wake_holds_total{outcome="expired"}`, "1")
	s.atRest()
}
