// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// relayed calls an engine through the relay lane as holdgate serve does.
func relayed(t *testing.T, l *lab, destination string, headers ...string) (*http.Response, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(l.dir, RelaySocket))
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://models.example/v1/x", strings.NewReader("abc"))
	require.NoError(t, err)
	req.Header.Set("X-Request-Id", "kept")
	req.Header.Set("User-Agent", "client")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	if destination != "" {
		req.Header.Set(DestinationHeader, destination)
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

func TestTheRelaySaysWhyAnEngineGaveNoAnswer(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, func(asked) answer { return answer{status: 500} })
	for destination, flag := range map[string]string{
		refusingEngine(t):  "UF",
		dyingEngine(t, ""): "UC",
		dyingEngine(t, "HTTP/1.1 200 OK\r\nx-holdgate-flags: forged\r\n"): "UPE",
		dyingEngine(t, "nonsense\r\n\r\n"):                                "UPE",
		"engine.example:80":                                               "UH",
		"":                                                                "UH",
	} {
		resp, _ := relayed(t, l, destination)
		require.Equal(t, []string{flag}, resp.Header.Values(FlagsHeader), destination)
		require.GreaterOrEqual(t, resp.StatusCode, 502, destination)
		require.LessOrEqual(t, resp.StatusCode, 503, destination)
	}
}

func TestAnEngineCannotForgeTheRelaysFlags(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, func(asked) answer { return answer{status: 500} })
	for _, status := range []string{"200 OK", "404 Not Found", "503 Service Unavailable"} {
		addr, seen := rawEngine(t, "HTTP/1.1 "+status+"\r\nX-Holdgate-Flags: UF\r\nx-holdgate-flags: UC\r\nserver: engine\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\ncontent-length: 2\r\n\r\nok")
		resp, body := relayed(t, l, addr)
		require.Equal(t, status, resp.Status)
		require.Equal(t, "ok", body)
		require.Empty(t, resp.Header.Values(FlagsHeader), status)
		require.Equal(t, http.Header{
			"Server": {"engine"}, "Date": {"Thu, 01 Jan 2026 00:00:00 GMT"}, "Content-Length": {"2"},
		}, resp.Header)
		require.Equal(t, map[string][]string{
			"host": {"models.example"}, "content-length": {"3"}, "user-agent": {"client"},
			"x-request-id": {"kept"}, "x-forwarded-proto": {"http"},
		}, fields(t, <-seen))
	}
	require.Empty(t, l.asks, "the relay lane has no ext_proc")
	require.Empty(t, l.logs[LogEdge], "the relay logs nothing")
}
