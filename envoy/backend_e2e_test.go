// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An answer with which a pool reports that it did not take the request never reaches
// the client: the request is decided again, with its whole body. An engine's own answer
// with the same status passes.
func TestAnAnswerThatWasNotTakenComesBackWithTheWholeBody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status                int
		contentType, notTaken string
		again                 bool
	}{
		"a mesh's":         {503, "text/plain", "503", true},
		"one without type": {502, "", "503,502", true},
		"an engine's":      {503, "application/json; charset=utf-8", "503", false},
		"another status":   {500, "text/plain", "503", false},
		"not asked for":    {503, "text/plain", "", false},
	} {
		first := goodEngine(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set(notTakenHeader, "forged")
			w.Header()["Content-Type"] = nil
			if c.contentType != "" {
				w.Header().Set("Content-Type", c.contentType)
			}
			w.WriteHeader(c.status)
			fmt.Fprint(w, "gone")
		})
		second := goodEngine(t, echo)
		l := newLab(t, 1, func(a asked) answer {
			switch {
			case a.lane == LaneRehold:
				return answer{first: second}
			case c.notTaken == "":
				return answer{first: first}
			}
			return answer{first: first, metadata: map[string]any{NotTakenKey: c.notTaken}}
		})
		const size = 9 << 20
		resp := post(t, l, size)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err, name)
		require.Empty(t, resp.Header.Values(notTakenHeader), name)
		require.Equal(t, LaneEdge, l.nextAsk(t).lane, name)
		if !c.again {
			require.Equal(t, "gone", string(body), name)
			require.Equal(t, c.status, resp.StatusCode, name)
			require.Empty(t, l.asks, name)
			continue
		}
		require.Equal(t, http.StatusOK, resp.StatusCode, name)
		require.Len(t, body, size, name)
		failed, err := ParseFailed(l.nextAsk(t).headers[FailedHeader])
		require.NoError(t, err, name)
		require.Equal(t, first, failed.Address.String(), name)
		require.Positive(t, failed.Sent, name)
		require.Positive(t, failed.Received, name)
	}
}

// secureEngine starts an engine over TLS for example.com and 127.0.0.1. It returns the
// engine's address, the path of its CA, and a channel with a summary of each request.
func secureEngine(t *testing.T) (address, ca string, seen chan string) {
	t.Helper()
	seen = make(chan string, 4)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{SNIHeader, TLSHeader, DestinationHeader} {
			if r.Header.Values(name) != nil {
				t.Errorf("the engine sees %s", name)
			}
		}
		seen <- fmt.Sprintf("%s %s %s", r.Host, r.URL.Path, r.TLS.ServerName)
		echo(w, r)
	}))
	s.StartTLS()
	t.Cleanup(s.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	return s.Listener.Addr().String(), ca, seen
}

// Holdgate sets authority, host and path of each request. The certificate must be for
// the host, or for the server name that Holdgate sets.
func TestADestinationMayBeOverTLS(t *testing.T) {
	t.Parallel()
	address, ca, seen := secureEngine(t)
	second := goodEngine(t, echo)
	set := map[string]string{}
	tls := ca
	l := newLab(t, 1, func(a asked) answer {
		if a.lane == LaneRehold {
			return answer{first: second}
		}
		return answer{first: address, set: set, reroute: true, metadata: map[string]any{TLSKey: tls}}
	}, SystemCA, ca)
	for _, c := range []struct {
		host, sni, want string
	}{
		{"example.com", "", "example.com /serve/v1/x example.com"},
		{"example.com:8443", "", "example.com:8443 /serve/v1/x example.com"},
		{"inside.test", "example.com", "inside.test /serve/v1/x example.com"},
		{"127.0.0.1", "", "127.0.0.1 /serve/v1/x "},
	} {
		clear(set)
		set[":authority"], set[":path"] = c.host, "/serve/v1/x"
		if c.sni != "" {
			set[SNIHeader] = c.sni
		}
		resp := post(t, l, 9<<20)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, c.host)
		require.Len(t, body, 9<<20)
		require.Equal(t, c.want, <-seen)
		require.Equal(t, LaneEdge, l.nextAsk(t).lane)

		headers := []string{TLSHeader, ca}
		if c.sni != "" {
			headers = append(headers, SNIHeader, c.sni)
		}
		resp, text := relayed(t, l, address, append(headers, "Host", c.host)...)
		require.Equal(t, http.StatusOK, resp.StatusCode, text)
		require.Equal(t, strings.Replace(c.want, "/serve", "", 1), <-seen)
	}

	// A certificate for another name, or of another CA, counts as a refused connection.
	clear(set)
	for _, wrong := range []string{"other.test", "example.com"} {
		set[":authority"] = wrong
		resp := post(t, l, 100)
		require.Equal(t, http.StatusOK, resp.StatusCode, "of the second one")
		require.Equal(t, LaneEdge, l.nextAsk(t).lane)
		failed, err := ParseFailed(l.nextAsk(t).headers[FailedHeader])
		require.NoError(t, err)
		require.Zero(t, failed.Sent)
		tls = SystemCA
	}

	// A request for a CA that the bootstrap does not have is never sent unencrypted.
	tls = "/another.pem"
	resp := post(t, l, 100)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	resp, _ = relayed(t, l, address, TLSHeader, tls)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Empty(t, seen)
}
