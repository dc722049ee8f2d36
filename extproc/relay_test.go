// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
)

func TestTheEngineGetsTheClientsRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		id := uuid.NewString()
		const body = `{"model":"m","messages":[]}`
		x := r.ask(t, extproctest.Request("/v1/messages?beta=true&x=%2F%20", body,
			headerRequestID, id, "authorization", "Bearer k", "x-custom", "1", "x-custom", "2", "content-type", "application/json",
			"x-empty", "", "content-length", "27",
			// These are between two hops, ours, or would change the answer's coding.
			"connection", "keep-alive", "keep-alive", "1", "te", "trailers", "trailer", "x", "transfer-encoding", "chunked", "upgrade-insecure", "1",
			"proxy-connection", "x", "proxy-authorization", "x", "accept-encoding", "gzip", "expect", "100-continue",
			"x-wake-timeout", "60s", "x-wake-anything", "1", "x-holdgate-destination", "127.0.0.1:1", "x-holdgate-failed", "x", ":scheme", "https",
			// The client of the relay would refuse these, and blame the replica.
			"x-control", "a\x01b", "x-newline", "a\nb", "bad name", "x"))
		r.slots.up(engineA, 1)
		call := r.engine.call(t, 1)
		require.Equal(t, http.MethodPost, call.Method)
		require.Equal(t, "/v1/messages?beta=true&x=%2F%20", call.URL.RequestURI())
		require.Equal(t, "api.example.com", call.Host)
		require.Equal(t, body, string(call.body))
		require.Equal(t, int64(len(body)), call.ContentLength)
		again, err := call.GetBody()
		require.NoError(t, err)
		text, err := io.ReadAll(again)
		require.NoError(t, err)
		require.Equal(t, body, string(text))
		require.Equal(t, http.Header{
			"X-Request-Id": {id}, "Authorization": {"Bearer k"}, "X-Custom": {"1", "2"}, "Content-Type": {"application/json"}, "X-Empty": {""},
			"Upgrade-Insecure": {"1"}, "X-Holdgate-Destination": {engineA}, "User-Agent": nil, "Accept-Encoding": {"identity"},
		}, call.Header)
		_ = call.respond(200).Close()
		x.RequireEnded(t, "0s head 200", `0s "" end`)
	})
}

// Envoy takes hosts that the client of the relay would refuse.
func TestAnOddHostIsNoFaultOfAReplica(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"a@b": "", "a b": "", "": "", "[::1]:80": "[::1]:80", "a-b.c:1": "a-b.c:1"} {
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, ":authority", host))
			r.slots.up(engineA, 1)
			call := r.engine.call(t, 1)
			require.Equal(t, want, call.Host)
			call.Body, _ = call.GetBody()
			require.NoError(t, call.Write(io.Discard), "it can be sent")
			_ = call.respond(200).Close()
			require.ErrorIs(t, x.End(), io.EOF)
		})
	}
}

// A body that was received in many chunks, or compressed, reaches the engine unchanged.
func TestTheEngineGetsTheBodyAsItCame(t *testing.T) {
	t.Parallel()
	for name, encode := range extproctest.Encoders {
		data := encode(extproctest.ChatBody(300 << 10))
		bubble(t, func(r *rig) {
			t := r.t
			r.holding(budget)
			x := r.open(t, "edge")
			kv := []string{":method", "POST", ":path", chatPath}
			if name != "" {
				kv = append(kv, "content-encoding", extproctest.CodingName(name))
			}
			x.Send(extproctest.RequestHeaders(false, kv...))
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 64<<10)
				x.Send(extproctest.RequestBody(string(rest[:n]), n == len(rest)))
				rest = rest[n:]
			}
			elapse(interval)
			r.slots.up(engineA, 1)
			call := r.engine.call(t, 1)
			require.Equal(t, string(data), string(call.body))
			require.Equal(t, extproctest.CodingName(name), call.Header.Get("Content-Encoding"))
			require.False(t, r.noBodies(), "the body is kept until the engine's head")
			body := call.respond(200)
			elapse(time.Second)
			require.True(t, r.noBodies(), "and no longer")
			_ = body.Close()
			require.ErrorIs(t, x.End(), io.EOF)
		})
	}
}

func TestPiecesOfAnAnswerArePassedAtOnceAndWhole(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(true))
		elapse(16 * time.Second)
		r.slots.up(engineA, 1)
		body := r.engine.call(t, 1).respond(200)
		var want strings.Builder
		for i := range 300 {
			piece := strings.Repeat(fmt.Sprintf("data: %d\n\n", i), 1+i*10)
			want.WriteString(piece)
			_, _ = io.WriteString(body, piece)
			elapse(time.Millisecond)
		}
		_ = body.Close()
		require.ErrorIs(t, x.End(), io.EOF)
		var got strings.Builder
		messages := x.Messages()
		for _, m := range messages[2:] {
			got.Write(m.GetStreamedImmediateResponse().GetBodyResponse().GetBody())
		}
		require.Equal(t, want.String(), got.String())
		require.Equal(t, 1, strings.Count(strings.Join(x.Events(), " "), comment), "no keepalive after the answer's first byte")
	}, func(o *Options) { o.RelayMaxBytes = 100 << 20 })
}

func TestAnEnginesErrorAfterAKeepaliveIsPassedOn(t *testing.T) {
	t.Parallel()
	const engines = `{"error":{"message":"context \"too\" long","code":7,"type":"BadRequestError","param":null},"more":1}`
	for name, c := range map[string]struct {
		stream     bool
		status     int
		text, want string
	}{
		"streaming": {
			true, 400, engines,
			`data: {"error":{"type":"BadRequestError","code":7,"message":"context \"too\" long","param":null,"source":"engine"}}` + "\n\n",
		},
		"streaming, no JSON": {
			true, 500, "oops",
			`data: {"error":{"code":"backend_error","message":"the engine answered with status 500","source":"engine"}}` + "\n\n",
		},
		"streaming, a redirect": {
			true, 307, "",
			`data: {"error":{"code":"backend_error","message":"the engine answered with status 307","source":"engine"}}` + "\n\n",
		},
		"streaming, another JSON": {
			true, 422, `{"detail":[]}`,
			`data: {"error":{"code":"backend_error","message":"the engine answered with status 422","source":"engine"}}` + "\n\n",
		},
		"streaming, long": {
			true, 503, `{"error":{"message":"` + strings.Repeat("x", 1<<20) + `"}}`,
			`data: {"error":{"code":"backend_error","message":"the engine answered with status 503","source":"engine"}}` + "\n\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := func(r *rig) *extproctest.Exchange {
				t := r.t
				t.Helper()
				x := r.ask(t, chat(c.stream))
				elapse(20 * time.Second)
				r.slots.up(engineA, 1)
				body := r.engine.call(t, 1).respond(c.status)
				go func() {
					_, _ = io.WriteString(body, c.text)
					_ = body.Close()
				}()
				return x
			}
			bubble(t, func(r *rig) {
				t := r.t
				answer(r).RequireEnded(t, "15s head 200", "15s "+comment, fmt.Sprintf("20s %q end", c.want))
			})
			bubble(t, func(r *rig) {
				t := r.t
				x := answer(r)
				require.Equal(t, codes.Aborted, status.Code(x.End()))
				require.Equal(t, fmt.Sprintf("20s %q", c.want), x.Events()[2])
			}, aborting)
		})
	}
	notStreaming := func(r *rig) *extproctest.Exchange {
		t := r.t
		t.Helper()
		x := r.ask(t, chat(false))
		elapse(20 * time.Second)
		r.slots.up(engineA, 1)
		body := r.engine.call(t, 1).respond(400)
		go func() {
			_, _ = io.WriteString(body, engines)
			_ = body.Close()
		}()
		return x
	}
	bubble(t, func(r *rig) {
		t := r.t
		notStreaming(r).RequireEnded(t, "15s head 200", "15s "+space, fmt.Sprintf("20s %q", engines), `20s "" end`)
	})
	bubble(t, func(r *rig) {
		t := r.t
		x := notStreaming(r)
		require.Equal(t, codes.Aborted, status.Code(x.End()), "an SDK must not take the error for an answer")
		require.Equal(t, []string{"15s head 200", "15s " + space, fmt.Sprintf("20s %q", engines), `20s ""`}, x.Events())
	}, aborting)
}

// An error that is no JSON, as a proxy in front of the engine sends it, would be unreadable
// behind a head that promises JSON. One that is passes as it is, whatever it calls itself.
func TestAProxysErrorAfterAKeepaliveBecomesJSON(t *testing.T) {
	t.Parallel()
	const own = `{"error":{"message":"too many"}}`
	for text, want := range map[string]string{
		"too many requests": `{"error":{"code":"backend_error","message":"the engine answered with status 429","source":"engine"}}`,
		own:                 own,
	} {
		for _, late := range []func(*Options){automatic, aborting} {
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(false))
				elapse(20 * time.Second)
				r.slots.up(engineA, 1)
				body := r.engine.call(t, 1).respond(429, "Content-Type", "text/plain")
				go func() {
					_, _ = io.WriteString(body, text)
					_ = body.Close()
				}()
				cut := status.Code(x.End()) == codes.Aborted
				ending := " end"
				if cut {
					ending = ""
				}
				require.Equal(t, []string{"15s head 200", "15s " + space, fmt.Sprintf("20s %q", want) + ending}, x.Events())
			}, late)
		}
	}
}

// While the text of an engine's error arrives slowly, keepalives go on, and a client that
// leaves is noticed.
func TestKeepalivesGoOnDuringAnEnginesSlowError(t *testing.T) {
	t.Parallel()
	for name, leave := range leavings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(true))
				elapse(20 * time.Second)
				r.slots.up(engineA, 1)
				r.engine.call(t, 1).respond(500)
				elapse(30 * time.Second)
				require.Equal(t, keptAlive(comment, interval, 45*time.Second), x.Events())
				leave(x)
				elapse(0)
				require.Zero(t, r.InFlight())
				require.Zero(t, r.slots.taken())
			})
		})
	}
}

func TestAnAnswerThatBreaksOffEndsWithAnError(t *testing.T) {
	t.Parallel()
	const half = `{"error":{"code":"backend_error","message":"the engine ended its answer half way","source":"router"}}`
	for _, committed := range []bool{false, true} {
		broken := func(r *rig, stream bool) *extproctest.Exchange {
			t := r.t
			t.Helper()
			x := r.ask(t, chat(stream))
			if committed {
				elapse(interval)
			}
			r.slots.up(engineA, 1)
			body := r.engine.call(t, 1).respond(200)
			_, _ = io.WriteString(body, "data: 1\n\n")
			_ = body.CloseWithError(io.ErrUnexpectedEOF)
			return x
		}
		bubble(t, func(r *rig) {
			t := r.t
			x := broken(r, true)
			require.ErrorIs(t, x.End(), io.EOF)
			got := x.Events()
			require.True(t, strings.HasSuffix(got[len(got)-1], fmt.Sprintf("%q end", "data: "+half+"\n\n")), got)
			require.Empty(t, r.slots.failures(), "the head had come: nothing is tried again")
		})
		bubble(t, func(r *rig) {
			t := r.t
			require.Equal(t, codes.Aborted, status.Code(broken(r, false).End()), "what is no stream is cut")
		})
		bubble(t, func(r *rig) {
			t := r.t
			x := broken(r, true)
			require.Equal(t, codes.Aborted, status.Code(x.End()))
			got := x.Events()
			require.True(t, strings.HasSuffix(got[len(got)-1], fmt.Sprintf("%q", "data: "+half+"\n\n")), got)
		}, aborting)
	}
}

func TestAnAnswerThatIsTooLargeEndsWithAnError(t *testing.T) {
	t.Parallel()
	const tooLarge = `{"error":{"code":"backend_error","message":"the answer is larger than 100000 bytes","source":"router"}}`
	limit := func(o *Options) { o.RelayMaxBytes = 100_000 }
	for _, stream := range []bool{true, false} {
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, chat(stream))
			r.slots.up(engineA, 1)
			call := r.engine.call(t, 1)
			body := call.respond(200)
			go func() {
				for { // it would never end
					if _, err := io.WriteString(body, strings.Repeat("x", 10_000)); err != nil {
						return
					}
				}
			}()
			if !stream {
				require.Equal(t, codes.Aborted, status.Code(x.End()))
				return
			}
			require.ErrorIs(t, x.End(), io.EOF)
			n := 0
			got := x.Events()
			for _, m := range x.Messages()[1 : len(got)-1] {
				n += len(m.GetStreamedImmediateResponse().GetBodyResponse().GetBody())
			}
			require.Equal(t, 100_000, n)
			require.Equal(t, fmt.Sprintf("0s %q end", "\n\ndata: "+tooLarge+"\n\n"), got[len(got)-1])
		}, limit)
	}
	bubble(t, func(r *rig) { // exactly the limit
		t := r.t
		x := r.ask(t, chat(false))
		r.slots.up(engineA, 1)
		body := r.engine.call(t, 1).respond(200)
		_, _ = io.WriteString(body, strings.Repeat("x", 100_000))
		_ = body.Close()
		require.ErrorIs(t, x.End(), io.EOF)
	}, limit)
}

func TestARelayThatCannotBeReachedBlamesNoReplica(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"dial", "write", "read"} {
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, chat(false))
			r.slots.up(engineA, 1)
			r.engine.call(t, 1).answer <- result{err: &net.OpError{Op: op, Err: net.ErrClosed}}
			x.RequireEnded(t, `0s 502 {"error":{"code":"backend_error","message":"the engines of model m ended the connection before they answered","source":"router"}}`)
			require.Contains(t, r.log.String(), "--relay")
			require.Empty(t, r.slots.failures(), "no replica is to blame")
		})
	}
}

// A request that the lane itself refuses ends, and no replica is given up.
func TestWhatTheLaneRefusesBlamesNoReplica(t *testing.T) {
	t.Parallel()
	const (
		tooLarge    = `"code":"request_too_large","message":"the request has too many headers, or too large ones","source":"router"`
		invalid     = `"code":"request_invalid","message":"the HTTP request is not acceptable","source":"router"`
		unavailable = `"code":"router_unavailable","message":"the router is not available; retry in 5 seconds","source":"router","retry_after":5`
		notHTTP     = `"code":"backend_error","message":"the engine of model m sent an answer that is not valid HTTP, or has more headers than Envoy takes","source":"router"`
	)
	for name, c := range map[string]struct {
		status int
		flags  string
		want   string
		answer int // the client's status
	}{
		"too many headers":        {431, "-", tooLarge, 431},
		"a path with other bytes": {400, "DPE", invalid, 400},
		"too large a body":        {413, "-", `"code":"request_too_large","message":"the request is too large","source":"router"`, 413},
		"overload":                {503, "OM", unavailable, 503},
		"an answer that is none":  {502, "UPE", notHTTP, 502},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, committed := range []bool{false, true} {
				bubble(t, func(r *rig) {
					t := r.t
					x := r.ask(t, chat(false))
					want := fmt.Sprintf(`0s %d {"error":{%s}}`, c.answer, c.want)
					if committed {
						elapse(interval)
						want = "15s " + fmt.Sprintf("%q", `{"error":{`+c.want+`}}`) + " end"
					}
					r.slots.up(engineA, 1)
					r.engine.call(t, 1).refuse(c.status, c.flags)
					require.ErrorIs(t, x.End(), io.EOF)
					events := x.Events()
					require.Equal(t, want, events[len(events)-1])
					require.Empty(t, r.slots.failures())
					require.Zero(t, r.slots.taken())
				})
			}
		})
	}
}

// An answer with flags is the lane's: its text is never passed on.
func TestTheLanesOwnAnswersAreNotShown(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(false))
		r.slots.up(engineA, 1)
		r.engine.call(t, 1).fail("UC")
		elapse(interval)
		require.NotContains(t, strings.Join(x.Events(), " "), "the lane's own text")
		x.Reset()
		elapse(0)
		require.Equal(t, 1, r.outcome(holdstate.OutcomeDisconnected))
	})
}
