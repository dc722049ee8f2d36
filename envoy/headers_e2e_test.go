// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// exchange sends raw to the edge and returns the answer's head and body.
func exchange(t *testing.T, l *lab, raw string) (head string, body []byte) {
	t.Helper()
	c, err := net.Dial("tcp", l.envoy.EdgeAddr())
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, raw)
	require.NoError(t, err)
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	before, after, ok := bytes.Cut(all, []byte("\r\n\r\n"))
	require.True(t, ok, "no head in %q", all)
	return string(before) + "\r\n\r\n", after
}

// fields returns the header lines of head, with lower-case names.
func fields(t *testing.T, head string) map[string][]string {
	t.Helper()
	_, lines, _ := strings.Cut(head, "\r\n")
	parsed, err := textproto.NewReader(bufio.NewReader(strings.NewReader(lines))).ReadMIMEHeader()
	require.NoError(t, err)
	lower := map[string][]string{}
	for k, v := range parsed {
		lower[strings.ToLower(k)] = v
	}
	return lower
}

const clientHead = "POST /v1/chat/completions?a=%2Fb//c HTTP/1.1\r\nHost: models.example\r\nConnection: close\r\nContent-Length: 3\r\n" +
	"Content-Type: application/json\r\nAuthorization: Bearer key\r\nX-Custom: one\r\nX-Custom: two\r\nx_under: 1\r\nVia: 1.1 proxy\r\nForwarded: for=1.2.3.4\r\n" +
	"User-Agent: test\r\nX-Forwarded-For: 10.0.0.1\r\nX-Envoy-Retry-On: 5xx\r\nX-Envoy-Max-Retries: 9\r\nX-Envoy-Upstream-Rq-Timeout-Ms: 1\r\n"

func TestAServedRequestKeepsItsHeadersAndGainsOnlyThree(t *testing.T) {
	t.Parallel()
	addr, seen := rawEngine(t, "HTTP/1.1 200 OK\r\nserver: engine\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\ncontent-type: application/json\r\ncontent-length: 2\r\nx-engine: yes\r\n\r\nok")
	l := newLab(t, 1, func(asked) answer { return answer{first: addr} })
	head, body := exchange(t, l, clientHead+"\r\nabc")

	got := <-seen
	require.True(t, strings.HasPrefix(got, "POST /v1/chat/completions?a=%2Fb//c HTTP/1.1\r\n"), got)
	request := fields(t, got)
	require.Len(t, request["x-request-id"], 1)
	delete(request, "x-request-id")
	require.Len(t, request[StreamHeader], 1)
	require.Equal(t, request[StreamHeader], request[ViaHeader])
	delete(request, ViaHeader)
	delete(request, StreamHeader) // Holdgate removes it
	require.Equal(t, map[string][]string{
		"host":              {"models.example"},
		"content-length":    {"3"},
		"content-type":      {"application/json"},
		"authorization":     {"Bearer key"},
		"x-custom":          {"one", "two"},
		"x_under":           {"1"},
		"via":               {"1.1 proxy"},
		"forwarded":         {"for=1.2.3.4"},
		"user-agent":        {"test"},
		"x-forwarded-for":   {"10.0.0.1"},
		"x-forwarded-proto": {"http"},
	}, request, "Envoy takes its own x-envoy headers, which would steer it, from clients")

	require.Equal(t, "ok", string(body))
	response := fields(t, head)
	require.Len(t, response["x-request-id"], 1)
	delete(response, "x-request-id")
	require.Equal(t, map[string][]string{
		"server":         {"engine"},
		"date":           {"Thu, 01 Jan 2026 00:00:00 GMT"},
		"content-type":   {"application/json"},
		"content-length": {"2"},
		"x-engine":       {"yes"},
		"connection":     {"close"},
	}, response)
}

// The headers as described in docs/envoy.md.
func TestWhatBecomesOfHeadersOnTheirWay(t *testing.T) {
	t.Parallel()
	addr, seen := rawEngine(t, "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 Fine Indeed\r\nVary: a\r\nVary: b\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"+
		"X-Custom: 1\r\nX-Custom: 2\r\nX-Request-Id: engine\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-trailer: 1\r\n\r\n")
	l := newLab(t, 1, func(asked) answer { return answer{first: addr} })
	first, rest := exchange(t, l, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\nAccept: a\r\nAccept: b\r\nVia: 1\r\nVia: 2\r\n"+
		"X-Custom: 1\r\nX-Custom: 2\r\nCookie: a=1\r\nCookie: b=2\r\nTE: trailers\r\nKeep-Alive: 5\r\nExpect: 100-continue\r\nX-Request-Id: client\r\n\r\nabc")
	request := fields(t, <-seen)
	for name, want := range map[string][]string{
		"accept": {"a,b"}, "via": {"1,2"}, "x-custom": {"1", "2"}, "cookie": {"a=1", "b=2"}, "te": {"trailers"},
		"keep-alive": nil, "expect": nil, "x-request-id": {"client"},
	} {
		require.Equal(t, want, request[name], "of the request: %s", name)
	}
	require.Contains(t, first, "HTTP/1.1 100 Continue\r\n")
	head, body, _ := strings.Cut(string(rest), "\r\n\r\n")
	require.True(t, strings.HasPrefix(head, "HTTP/1.1 200 OK\r\n"), head)
	response := fields(t, head+"\r\n\r\n")
	for name, want := range map[string][]string{
		"vary": {"a,b"}, "x-custom": {"1", "2"}, "set-cookie": {"a=1", "b=2"}, "link": nil, "keep-alive": nil, "x-request-id": {"client"}, "server": nil,
	} {
		require.Equal(t, want, response[name], "of the answer: %s", name)
	}
	require.Equal(t, "2\r\nok\r\n0\r\n\r\n", body)
}

func TestHeadersOfTheMetadataComeWithANativeAnswer(t *testing.T) {
	t.Parallel()
	addr, _ := rawEngine(t, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nserver-timing: own;dur=1\r\nx-ratelimit-remaining-requests: 99\r\n\r\n")
	l := newLab(t, 1, func(asked) answer {
		return answer{first: addr, metadata: map[string]any{RateLimitKey: "7", ServerTimingKey: "hold;dur=3, queue;dur=0"}}
	})
	head, _ := exchange(t, l, clientHead+"\r\nabc")
	response := fields(t, head)
	require.Equal(t, []string{"own;dur=1", "hold;dur=3, queue;dur=0"}, response["server-timing"])
	require.Equal(t, []string{"7"}, response["x-ratelimit-remaining-requests"])
}

func TestAnEnginesOwnHeadersStayWhenTheMetadataHasNone(t *testing.T) {
	t.Parallel()
	addr, _ := rawEngine(t, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nserver-timing: own;dur=1\r\nx-ratelimit-remaining-requests: 99\r\n\r\n")
	l := newLab(t, 1, func(asked) answer { return answer{first: addr} })
	head, _ := exchange(t, l, clientHead+"\r\nabc")
	response := fields(t, head)
	require.Equal(t, []string{"own;dur=1"}, response["server-timing"])
	require.Equal(t, []string{"99"}, response["x-ratelimit-remaining-requests"])
}

// With CORS an engine's own CORS headers are replaced by those of the metadata.
func TestTheRoutersCORSHeadersTakeTheEnginesPlace(t *testing.T) {
	t.Parallel()
	const engines = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nvary: accept-encoding\r\naccess-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\n" +
		"access-control-expose-headers: x\r\n\r\n"
	for name, c := range map[string]struct {
		metadata map[string]any
		reroute  bool
		want     [4][]string // allow-origin, allow-credentials, expose-headers, vary
	}{
		"not configured": {nil, false, [4][]string{{"*"}, {"true"}, {"x"}, {"accept-encoding"}}},
		"an origin":      {map[string]any{CORSOriginKey: "https://a.example", CORSExposeKey: "location"}, true, [4][]string{{"https://a.example"}, nil, {"location"}, {"accept-encoding,origin"}}},
		"another origin": {map[string]any{CORSOriginKey: ""}, true, [4][]string{nil, nil, nil, {"accept-encoding,origin"}}},
	} {
		addr, _ := rawEngine(t, engines)
		l := newLab(t, 1, func(asked) answer {
			return answer{first: addr, reroute: c.reroute, metadata: c.metadata}
		})
		head, _ := exchange(t, l, clientHead+"\r\nabc")
		got := fields(t, head)
		require.Equal(t, c.want, [4][]string{
			got["access-control-allow-origin"], got["access-control-allow-credentials"], got["access-control-expose-headers"], got["vary"],
		}, name)
	}
}

// An error that Envoy itself answers after a request was forwarded has them too.
func TestAnErrorOfEnvoysOwnHasTheCORSHeaders(t *testing.T) {
	t.Parallel()
	var l *lab
	dies := goodEngine(t, func(_ http.ResponseWriter, _ *http.Request) {
		l.grpc.Stop()
		panic(http.ErrAbortHandler)
	})
	l = newLab(t, 1, func(asked) answer {
		return answer{first: dies, reroute: true, metadata: map[string]any{CORSOriginKey: "https://a.example"}}
	})
	resp, body := postTo(t, l, "/v1/messages")
	require.JSONEq(t, unavailableAnthropic, body)
	require.Equal(t, []string{"https://a.example"}, resp.Header["Access-Control-Allow-Origin"])
}

func TestClientsCannotForgeWhatTheLanesSay(t *testing.T) {
	t.Parallel()
	addr, seen := rawEngine(t, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
	l := newLab(t, 1, func(asked) answer { return answer{first: addr} })
	forged := ""
	for _, name := range []string{DestinationHeader, FlagsHeader, FailedHeader, "X-Holdgate-Destination", attemptHeader, LaneMetadata} {
		forged += name + ": 127.0.0.1:1\r\n"
	}
	exchange(t, l, clientHead+forged+"\r\nabc")
	a := l.nextAsk(t)
	require.Equal(t, LaneEdge, a.lane)
	for _, name := range []string{DestinationHeader, FlagsHeader, FailedHeader} {
		require.NotContains(t, a.headers, name, "ext_proc saw it")
	}
	request := fields(t, <-seen)
	for _, name := range []string{DestinationHeader, FlagsHeader, FailedHeader, attemptHeader} {
		require.NotContains(t, request, name, "the engine saw it")
	}
}

func TestTheRecordOfARequestHasTheIDThatExtProcGaveIt(t *testing.T) {
	t.Parallel()
	addr := goodEngine(t, echo)
	l := newLab(t, 1, func(asked) answer {
		return answer{first: addr, set: map[string]string{"x-request-id": "given-by-ext-proc"}}
	})
	head, _ := exchange(t, l, clientHead+"X-Request-Id: from-the-client\r\n\r\nabc")
	require.Equal(t, "from-the-client", l.nextAsk(t).headers["x-request-id"])
	require.Equal(t, []string{"given-by-ext-proc"}, fields(t, head)["x-request-id"])
	record := l.nextLog(t, LogEdge).entry
	require.Equal(t, "given-by-ext-proc", record.GetRequest().GetRequestId())
	require.Equal(t, "10.0.0.1", record.GetCommonProperties().GetDownstreamRemoteAddress().GetSocketAddress().GetAddress(), "a client can write it")
	require.Equal(t, "127.0.0.1", record.GetCommonProperties().GetDownstreamDirectRemoteAddress().GetSocketAddress().GetAddress())
	require.Equal(t, addr, record.GetCommonProperties().GetMetadata().GetFilterMetadata()[Namespace].GetFields()[FirstKey].GetStringValue())
	require.Equal(t, uint32(http.StatusOK), record.GetResponse().GetResponseCode().GetValue())
}

func TestHeadersUpToTheLimitPassAndAboveItAreRefusedInJSON(t *testing.T) {
	t.Parallel()
	addr := goodEngine(t, echo)
	l := newLab(t, 1, func(asked) answer { return answer{first: addr} })
	large := func(size int) string {
		return fmt.Sprintf("%sX-Large: %s\r\n\r\nabc", clientHead, strings.Repeat("x", size))
	}
	head, body := exchange(t, l, large(60<<10))
	require.Contains(t, head, "HTTP/1.1 200 OK")
	require.Equal(t, "abc", string(body))
	head, body = exchange(t, l, large(70<<10))
	require.Contains(t, head, "HTTP/1.1 431 ")
	require.JSONEq(t, `{"error":{"code":"request_too_large","message":"the request has too many headers, or too large ones","source":"router"}}`, string(body))
}
