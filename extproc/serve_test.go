// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	procfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/refusal"
)

const (
	engineA = "10.0.0.1:8000"
	engineB = "10.0.0.2:8000"
)

func TestServeSendsTheBodyBackAsItCame(t *testing.T) {
	t.Parallel()
	const text = `{"model":"m","x":"0123456789"}`
	for name, c := range map[string]struct {
		send []*extprocv3.ProcessingRequest
		want []string
	}{
		"one chunk":  {[]*extprocv3.ProcessingRequest{extproctest.RequestBody(text, true)}, []string{"0s body 30 end"}},
		"two chunks": {[]*extprocv3.ProcessingRequest{extproctest.RequestBody(text[:7], false), extproctest.RequestBody(text[7:], true)}, []string{"0s body 7", "0s body 23 end"}},
		"an empty last chunk": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestBody(text[:7], false), extproctest.RequestBody(text[7:], false), extproctest.RequestBody("", true)},
			[]string{"0s body 7", "0s body 23 end"},
		},
		"a doubled last chunk": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestBody(text[:7], false), extproctest.RequestBody(text[7:], true), extproctest.RequestBody(text[7:], true)},
			[]string{"0s body 7", "0s body 23 end"},
		},
		"trailers": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestBody(text[:7], false), extproctest.RequestBody(text[7:], false), extproctest.RequestTrailers("x-t", "1")},
			nil,
		},
		"attributes on each": {
			[]*extprocv3.ProcessingRequest{extproctest.Decorated(extproctest.RequestBody(text[:1], false)), extproctest.Decorated(extproctest.RequestBody(text[1:], true))},
			[]string{"0s body 1", "0s body 29 end"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.slots.up(engineA, 1)
				id := uuid.NewString()
				x := r.ask(t, append([]*extprocv3.ProcessingRequest{
					extproctest.Decorated(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath+"?a=b", headerRequestID, id)),
				}, c.send...))
				head := "0s serve on " + engineA + ", 30 bytes"
				if c.want == nil {
					head += ", whole"
				}
				require.Equal(t, append([]string{head}, c.want...), x.Events())
				var sent []byte
				for _, m := range x.Messages() {
					sent = append(sent, m.GetRequestHeaders().GetResponse().GetBodyMutation().GetBody()...)
					sent = append(sent, m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
				}
				require.Equal(t, text, string(sent))
				require.Equal(t, 1, r.slots.taken(), "the slot is Envoy's")
				require.True(t, r.noBodies(), "the body was handed over")
				require.Equal(t, 1, r.routedNow())

				_ = x.Stream.CloseSend() // Envoy has all that it wants
				require.ErrorIs(t, x.End(), io.EOF)
				require.Equal(t, 1, r.InFlight())
				record, end := r.logStream(t, envoy.LogEdge)
				record(id, envoy.ModeNative)
				require.Zero(t, r.InFlight())
				record(id, envoy.ModeNative) // a second record of the same id does nothing
				end()
			})
		})
	}
}

func TestWhatIsChangedOnARequestThatIsServed(t *testing.T) {
	t.Parallel()
	mutation := func(t *testing.T, x *extproctest.Exchange) (id string, removed []string) {
		t.Helper()
		require.NotEmpty(t, x.Events())
		m := x.Messages()[0].GetRequestHeaders().GetResponse().GetHeaderMutation()
		for _, o := range m.GetSetHeaders() {
			require.Equal(t, headerRequestID, o.GetHeader().GetKey(), "nothing else is set")
			id = string(o.GetHeader().GetRawValue())
		}
		return id, m.GetRemoveHeaders()
	}
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 10)
		record, end := r.logStream(t, envoy.LogEdge)
		mine := uuid.NewString()
		first := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, mine, "x-wake-keepalive", "off", "x-wake-x", "1", "x-waken", "2"))
		id, removed := mutation(t, first)
		require.Empty(t, id, "a UUID that is free is kept")
		require.Equal(t, []string{"x-wake-keepalive", "x-wake-x"}, removed)

		second := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, mine))
		taken, removed := mutation(t, second)
		require.NoError(t, uuid.Validate(taken), "one that is in flight is replaced")
		require.NotEqual(t, mine, taken)
		require.Empty(t, removed)

		for _, bad := range []string{"", "x", mine + "x", "urn:uuid:" + mine, strings.ReplaceAll(mine, "-", ""), strings.Repeat("g", 36)} {
			x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, bad))
			id, _ := mutation(t, x)
			require.NoError(t, uuid.Validate(id), "%q is replaced", bad)
			record(id, envoy.ModeNative)
			x.Reset()
		}
		require.Equal(t, 2, r.slots.taken())
		record(taken, envoy.ModeNative)
		require.Equal(t, 1, r.slots.taken())
		record(mine, envoy.ModeNative)
		first.Reset()
		second.Reset()
		end()
	})
}

func TestRefusalsAtTheHeaders(t *testing.T) {
	t.Parallel()
	const methodNotAllowed = `405 {"error":{"code":"method_not_allowed","message":"this endpoint takes only POST","source":"router"}}`
	for name, c := range map[string]struct {
		end     bool
		headers []string
		want    string
	}{
		"GET":              {true, []string{":method", "GET", ":path", chatPath}, methodNotAllowed},
		"HEAD":             {true, []string{":method", "HEAD", ":path", chatPath}, methodNotAllowed},
		"OPTIONS":          {true, []string{":method", "OPTIONS", ":path", chatPath}, methodNotAllowed},
		"PUT with a body":  {false, []string{":method", "PUT", ":path", chatPath}, methodNotAllowed},
		"GET with a body":  {false, []string{":method", "GET", ":path", chatPath}, methodNotAllowed},
		"a GET's upgrade":  {false, []string{":method", "GET", ":path", chatPath, "upgrade", "websocket"}, methodNotAllowed},
		"a POST's upgrade": {false, []string{":method", "POST", ":path", chatPath, "upgrade", "h2c"}, methodNotAllowed},
		"Codex's upgrade": {
			true,
			[]string{":method", "GET", ":path", "/v1/responses", "upgrade", "websocket"},
			`426 {"error":{"code":"request_invalid","message":"there is no WebSocket here: send the request with POST","source":"router"}}`,
		},
		"CONNECT": {false, []string{":method", "CONNECT", ":path", chatPath}, methodNotAllowed},
		"too long": {
			false,
			[]string{":method", "POST", ":path", chatPath, "content-length", "1048577"},
			`413 {"error":{"code":"request_too_large","message":"the request body is larger than 1048576 bytes","source":"router"}}`,
		},
		"too long for Anthropic": {
			false,
			[]string{":method", "POST", ":path", "/v1/messages?beta=true", "content-length", "9999999999"},
			`413 {"type":"error","error":{"type":"request_too_large","code":"request_too_large","message":"the request body is larger than 1048576 bytes","source":"router"}}`,
		},
		"coding": {
			false,
			[]string{":method", "POST", ":path", chatPath, "content-encoding", "deflate"},
			`415 {"error":{"code":"unsupported_encoding","message":"the request body has an unsupported content-encoding; use gzip, zstd, br or none","source":"router"}}`,
		},
		"two codings": {
			false,
			[]string{":method", "POST", ":path", chatPath, "content-encoding", "gzip", "content-encoding", "br"},
			`415 {"error":{"code":"unsupported_encoding","message":"the request body has an unsupported content-encoding; use gzip, zstd, br or none","source":"router"}}`,
		},
		"no body": {
			true,
			[]string{":method", "POST", ":path", chatPath},
			`400 {"error":{"code":"request_invalid","message":"the request body is empty","source":"router"}}`,
		},
		"another path": {
			false,
			[]string{":method", "POST", ":path", "/v1/chat/completions/"},
			`404 {"error":{"code":"not_found","message":"this path is not an endpoint of the router: use /v1/chat/completions","source":"router"}}`,
		},
		"no path": {
			true,
			[]string{":method", "GET"},
			`404 {"error":{"code":"not_found","message":"this path is not an endpoint of the router","source":"router"}}`,
		},
		"models":       {true, []string{":method", "GET", ":path", "/v1/models?a=b"}, `200 {"object":"list"}`},
		"one model":    {true, []string{":method", "GET", ":path", "/v1/models/m"}, `200 {"id":"m"}`},
		"with a slash": {true, []string{":method", "GET", ":path", "/v1/models/org/name"}, `200 {"id":"org/name"}`},
		"with a slash, as Node's client sends it": {true, []string{":method", "GET", ":path", "/v1/models/org%2Fname"}, `200 {"id":"org/name"}`},
		"unknown model": {
			true,
			[]string{":method", "GET", ":path", "/v1/models/x%"},
			`404 {"error":{"code":"model_not_found","message":"model x% does not exist here","source":"router"}}`,
		},
		"a model's name that is no UTF-8": {
			true,
			[]string{":method", "GET", ":path", "/v1/models/\"%ff"},
			"404 {\"error\":{\"code\":\"model_not_found\",\"message\":\"model \\\"\ufffd does not exist here\",\"source\":\"router\"}}",
		},
		"POST to models": {
			false,
			[]string{":method", "POST", ":path", "/v1/models"},
			`405 {"error":{"code":"method_not_allowed","message":"this endpoint takes only GET","source":"router"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.slots.up(engineA, 1)
				x := r.open(t, envoy.LaneEdge)
				x.Send(extproctest.RequestHeaders(c.end, c.headers...))
				x.RequireEnded(t, "0s "+c.want)
			})
		})
	}
}

// With what Envoy and the router add, these headers are above the limits of Envoy.
func TestHeadersAtTheLimitAreRefused(t *testing.T) {
	t.Parallel()
	const refused = `0s 431 {"error":{"code":"request_too_large","message":"the request has too many headers, or too large ones","source":"router"}}`
	for name, c := range map[string]struct {
		lane  string
		count int
		size  int
		want  string
	}{
		"95 more":              {envoy.LaneEdge, 95, 0, ""},
		"96 more":              {envoy.LaneEdge, 96, 0, refused},
		"96 more, elsewhere":   {"", 96, 0, refused},
		"96 more, in the lane": {envoy.LaneRehold, 96, 0, ""},
		"64,000 bytes":         {envoy.LaneEdge, 0, 64_000, ""},
		"65,400 bytes":         {envoy.LaneEdge, 0, 65_400, refused},
		"in the lane":          {envoy.LaneRehold, 0, 65_400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.slots.up(engineA, 1)
				headers := []string{envoy.StreamHeader, "s", headerRequestID, uuid.NewString(), "x-large", strings.Repeat("x", c.size)}
				for i := range c.count - 1 {
					headers = append(headers, fmt.Sprintf("x-%d", i), "1")
				}
				x := r.open(t, c.lane)
				x.Send(extproctest.Request(chatPath, `{"model":"m"}`, headers...)...)
				if c.want == "" {
					c.want = "0s serve on " + engineA + ", 13 bytes"
				}
				require.Equal(t, c.want, x.Events()[0])
				x.Reset()
				r.endAllNow()
			})
		})
	}
}

func TestABodyOverTheLimitIsRefusedBeforeItsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.open(t, envoy.LaneEdge)
		x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath))
		chunk := strings.Repeat(" ", 64<<10)
		for range 16 {
			x.Send(extproctest.RequestBody(chunk, false))
		}
		require.Empty(t, x.Events(), "exactly the limit is still allowed")
		x.Send(extproctest.RequestBody(" ", false))
		x.RequireEnded(t, `0s 413 {"error":{"code":"request_too_large","message":"the request body is larger than 1048576 bytes","source":"router"}}`)
	})
}

func TestBodiesThatCannotBeReadAreRefused(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"model":"a","model":"b"}`: "the request body has more than one model",
		`{`:                         "the request body is not valid JSON near byte 1",
		``:                          "the request body is empty",
	} {
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, extproctest.Request("/v1/messages", body))
			x.RequireEnded(t, `0s 400 {"type":"error","error":{"type":"invalid_request_error","code":"request_invalid","message":"`+want+`","source":"router"}}`)
		})
	}
}

// duplex is a first message of an Envoy that wants chunks of answers sent back.
func duplex(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{ResponseBodyMode: procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED}
	return m
}

// A gateway sends the requests of all its applications.
func TestLoadBalancersAreToldIfTheRouterIsReady(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.authenticate = func(Credentials) (fakeCall, *refusal.Refusal) { return fakeCall{}, refusal.Unauthorized("no key") }
		ask := func(lane, method string) *extproctest.Exchange {
			x := r.open(t, lane)
			x.Send(extproctest.RequestHeaders(true, ":method", method, ":path", "/readyz?a"))
			_ = x.Stream.CloseSend()
			return x
		}
		ask(envoy.LaneEdge, "GET").RequireEnded(t, `0s 200 {"status":"ready"}`)
		r.notReady = "it rains"
		ask(envoy.LaneEdge, "HEAD").RequireEnded(t, `0s 503 {"status":"not ready"}`)
		ask("", "GET").RequireEnded(t, "0s untouched")
		elapse(logWait + time.Second)
		require.Empty(t, r.records, "a question of a load balancer is on no record")
	})
}

// An engine may take these requests for calls of an endpoint. By route they would be served
// without the router.
func TestACallByAnotherPathDoesNotPassAGateway(t *testing.T) {
	t.Parallel()
	const notFound = `0s 404 {"error":{"code":"not_found","message":"this path is not an endpoint of the router: use /v1/chat/completions","source":"router"}}`
	bubble(t, func(r *rig) {
		t := r.t
		r.routeAll()
		r.slots.up(engineA, 1)
		for _, path := range []string{
			"/v1/chat%2Fcompletions", "/v1/chat%2fcompletions", "/v1/ch%61t/completions", "/v1/chat%252Fcompletions",
			"//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/", "/v1/./chat/completions",
			"/v1/models/../chat/completions", "/v1/models/%2e%2e/chat/completions", `/v1\chat\completions`, "/V1/Chat/Completions",
			"/v1/chat%2Fcompletions?a=b%zz",
		} {
			r.viaGateway(t, extproctest.Request(path, gatewayBody)...).RequireEnded(t, notFound)
		}
		for _, method := range []string{"POST", "GET"} { // the engine may ignore the upgrade
			r.viaGateway(t, extproctest.RequestHeaders(false, ":method", method, ":path", chatPath, "upgrade", "x")).
				RequireEnded(t, `0s 405 {"error":{"code":"method_not_allowed","message":"this endpoint takes only POST","source":"router"}}`)
		}
	})
}

func TestRequestsToOtherApplicationsPassUntouched(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send []*extprocv3.ProcessingRequest
		want []string
	}{
		"a GET": {[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(true, ":method", "GET", ":path", "/")}, []string{"0s untouched"}},
		"a path that only begins as an endpoint's": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(true, ":method", "POST", ":path", chatPath+"%2Fextra%zz")},
			[]string{"0s untouched"},
		},
		"a preflight": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(true, ":method", "OPTIONS", ":path", chatPath)},
			[]string{"0s untouched"},
		},
		"a body": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(false, ":method", "POST", ":path", "/upload"), extproctest.RequestBody("abc", false), extproctest.RequestBody("", false), extproctest.RequestBody("de", true)},
			[]string{"0s untouched", "0s body 3", "0s body 0", "0s body 2 end"},
		},
		"a doubled last chunk": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(false, ":method", "POST", ":path", "/upload"), extproctest.RequestBody("abc", true), extproctest.RequestBody("abc", true)},
			[]string{"0s untouched", "0s body 3 end"},
		},
		"trailers": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(false, ":method", "POST", ":path", "/upload"), extproctest.RequestBody("abc", false), extproctest.RequestTrailers("a", "b")},
			[]string{
				"0s untouched", "0s body 3",
				`0s 400 {"error":{"code":"request_invalid","message":"a request with a body and trailers cannot be sent on; leave the trailers out","source":"router"}}`,
			},
		},
		"trailers only": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(false, ":method", "POST", ":path", "/upload"), extproctest.RequestTrailers("a", "b")},
			[]string{"0s untouched", "0s trailers"},
		},
		"an answer that comes during the body": {
			[]*extprocv3.ProcessingRequest{
				duplex(extproctest.RequestHeaders(false, ":method", "POST", ":path", "/upload")), extproctest.RequestBody("abc", false),
				{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{}}},
				{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("ab"), EndOfStream: true}}},
				{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}},
				extproctest.RequestBody("de", true),
			},
			[]string{"0s untouched", "0s body 3", "0s answer's head", `0s answer "ab" end`, "0s answer's trailers", "0s body 2 end"},
		},
		"an answer in another mode": {
			[]*extprocv3.ProcessingRequest{
				extproctest.RequestHeaders(false, ":method", "POST", ":path", "/upload"),
				{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("ab"), EndOfStream: true}}},
				extproctest.RequestBody("de", true),
			},
			[]string{"0s untouched", "0s answer goes on", "0s body 2 end"},
		},
		"an upgrade": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(false, ":method", "GET", ":path", "/socket", "upgrade", "websocket"), extproctest.RequestBody("abc", false)},
			[]string{"0s untouched", "0s body 3"},
		},
		"the models API is ours": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(true, ":method", "GET", ":path", "/v1/models")},
			[]string{`0s 200 {"object":"list"}`},
		},
		"a DELETE of a model is not": {
			[]*extprocv3.ProcessingRequest{extproctest.RequestHeaders(true, ":method", "DELETE", ":path", "/v1/models/m")},
			[]string{"0s untouched"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				x := r.open(t, "")
				x.Send(c.send...)
				_ = x.Stream.CloseSend()
				x.RequireEnded(t, c.want...)
			})
		})
	}
}

func TestAStreamMustBeginWithHeaders(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.open(t, envoy.LaneEdge)
		_ = x.Stream.CloseSend()
		x.RequireEnded(t)
		for _, m := range []*extprocv3.ProcessingRequest{extproctest.RequestBody(strings.Repeat("x", 5000), true), extproctest.RequestTrailers(), {}} {
			x := r.open(t, envoy.LaneEdge)
			x.Send(m)
			require.Equal(t, codes.InvalidArgument, status.Code(x.End()))
		}
	})
}

// A crash in the observer must give back the slot that the request has just got.
func TestACrashInTheObserverLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} {
		bubble(t, func(r *rig) {
			t := r.t
			r.crash = true
			if !held {
				r.slots.up(engineA, 1)
			}
			x := r.ask(t, chat(false))
			if held {
				r.slots.up(engineA, 1)
			}
			require.Equal(t, codes.Internal, status.Code(x.End()))
		})
	}
}

func TestACrashInTheDeciderEndsItsStreamOnly(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		other := r.ask(t, chat(false)) // held
		usual := r.decide
		r.decide = func(*Request) Decision { crash(2); return Decision{} }
		x := r.ask(t, chat(false))
		require.Equal(t, codes.Internal, status.Code(x.End()))
		require.Contains(t, r.log.String(), "panic while serving a request")
		r.decide = usual
		require.Equal(t, 1, r.InFlight())
		require.Empty(t, other.Events())
		r.machine.Drain()
		other.RequireEnded(t, `0s 503 {"error":{"code":"draining","message":"this router is shutting down; retry in 1 second","source":"router","retry_after":1}}`)
	})
}
