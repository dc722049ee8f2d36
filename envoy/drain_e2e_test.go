// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Clients of an Envoy that closes its connections lose no answer, and come back over new ones.
func TestAnEnvoyThatClosesConnectionsLosesNoAnswer(t *testing.T) {
	for name, protocols := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2":   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		t.Run(name, func(t *testing.T) {
			begun, finish := make(chan struct{}), make(chan struct{})
			finished := sync.OnceFunc(func() { close(finish) })
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Slow") != "" {
					_, _ = io.WriteString(w, "first ")
					_ = http.NewResponseController(w).Flush()
					close(begun)
					<-finish
				}
				_, _ = io.WriteString(w, "second")
			}))
			defer engine.Close()
			defer finished()
			l := newLab(t, 1, func(asked) answer { return answer{first: engine.Listener.Addr().String()} })
			transport := &http.Transport{Protocols: new(http.Protocols)}
			protocols(transport.Protocols)
			client := &http.Client{Transport: transport}
			defer client.CloseIdleConnections()
			send := func(headers ...string) (resp *http.Response, reused bool) {
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }})
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url("/v1/chat/completions"), http.NoBody)
				require.NoError(t, err)
				for i := 0; i+1 < len(headers); i += 2 {
					r.Header.Set(headers[i], headers[i+1])
				}
				resp, err = client.Do(r)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, resp.StatusCode)
				return resp, reused
			}
			whole := func(resp *http.Response) string {
				defer func() { _ = resp.Body.Close() }()
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				return string(text)
			}
			quick := func() (reused bool) {
				resp, reused := send()
				require.Equal(t, "second", whole(resp))
				return reused
			}
			quick()
			require.True(t, quick(), "connections are kept")
			slow, _ := send("X-Slow", "1")
			<-begun
			admin := NewAdmin(l.envoy.Admin())
			require.NoError(t, admin.CloseConnections(t.Context()))
			closed := 0
			for range 20 {
				if !quick() {
					closed++
				}
			}
			require.GreaterOrEqual(t, closed, 15)
			finished()
			require.Equal(t, "first second", whole(slow), "the answer that ran")
			require.NoError(t, admin.KeepConnections(t.Context()))
			for range 3 {
				quick()
			}
			require.True(t, quick(), "connections are kept again")
		})
	}
}
