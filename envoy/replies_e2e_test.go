// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func postTo(t *testing.T, l *lab, path string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(l.url(path), "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

const (
	unavailableOpenAI    = `{"error":{"code":"router_unavailable","message":"the router is not available; retry in 5 seconds","retry_after":5,"source":"router"}}`
	unavailableAnthropic = `{"error":{"code":"router_unavailable","message":"the router is not available; retry in 5 seconds","retry_after":5,"source":"router","type":"overloaded_error"},"type":"error"}`
)

func TestWithoutHoldgateAnswersAreTheEnvelopeOfTheAPI(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, func(asked) answer { return answer{status: 500} })
	l.grpc.Stop()
	for path, want := range map[string]string{
		"/v1/chat/completions":      unavailableOpenAI,
		"/v1/messages":              unavailableAnthropic,
		"/v1/messages?beta=true":    unavailableAnthropic,
		"/v1/messages/count_tokens": unavailableAnthropic,
		"/somewhere":                unavailableOpenAI,
	} {
		resp, body := postTo(t, l, path)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, path)
		require.JSONEq(t, want, body, path)
		require.Equal(t, "application/json", resp.Header.Get("Content-Type"), path)
		require.Equal(t, "5", resp.Header.Get("Retry-After"), path)
		require.Len(t, resp.Header.Values("X-Request-Id"), 1, path)
	}
}

func TestHoldgateGoneBetweenTwoAttemptsIsTheEnvelopeToo(t *testing.T) {
	t.Parallel()
	var l *lab
	first := goodEngine(t, func(_ http.ResponseWriter, _ *http.Request) {
		l.grpc.Stop()
		panic(http.ErrAbortHandler) // the connection ends without an answer.
	})
	l = newLab(t, 1, func(asked) answer { return answer{first: first} })
	resp, body := postTo(t, l, "/v1/messages")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.JSONEq(t, unavailableAnthropic, body)
}

func TestHoldgatesOwnAnswersAreLeftAlone(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404, 413, 429, 503} {
		l := newLab(t, 1, func(asked) answer { return answer{status: status} })
		resp, body := postTo(t, l, "/v1/messages")
		require.Equal(t, status, resp.StatusCode)
		require.JSONEq(t, `{"own":true}`, body)
		require.Empty(t, resp.Header.Get("Retry-After"))
	}
}

func TestWhatEnvoyRefusesByItselfIsTheEnvelope(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, func(asked) answer { return answer{status: 500} })
	head, body := exchange(t, l, "POST /v1/messages HTTP/1.1\r\nConnection: close\r\n\r\n")
	require.Contains(t, head, "HTTP/1.1 400 ", "a request without a host")
	require.NotContains(t, string(body), "router_unavailable", "it is the client's mistake")
	head, body = exchange(t, l, "POST /v1/messages HTTP/1.0\r\n\r\n")
	require.Contains(t, head, " 426 ")
	require.JSONEq(t, `{"error":{"code":"request_invalid","message":"HTTP/1.0 is not served here: use HTTP/1.1 or HTTP/2; in nginx set proxy_http_version 1.1","source":"router"}}`, string(body))
	head, body = exchange(t, l, "GET /v1/responses HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
	require.Contains(t, head, " 426 ")
	require.JSONEq(t, `{"error":{"code":"request_invalid","message":"there is no WebSocket here: send the request with POST","source":"router"}}`, string(body))
	head, body = exchange(t, l, "GET /v1/messages HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	require.Contains(t, head, " 403 ")
	require.JSONEq(t, `{"error":{"code":"request_invalid","message":"the HTTP request is not acceptable","source":"router","type":"invalid_request_error"},"type":"error"}`, string(body))
	head, body = exchange(t, l, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: xchunked\r\n\r\n")
	require.Contains(t, head, " 501 ")
	require.NotContains(t, head, "retry-after")
	require.JSONEq(t, `{"error":{"code":"unsupported_encoding","message":"the request has an unsupported transfer-encoding; use chunked, or a content-length","source":"router"}}`, string(body))
	require.Empty(t, l.asks, "none of them reaches ext_proc")
}
