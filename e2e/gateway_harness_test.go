// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
)

// envoyGatewayLog is the name of the access log of an EnvoyProxy with a sink of type ALS.
const envoyGatewayLog = "edge"

// oldEnvoy is the environment variable with the path of an Envoy before 1.37, which cannot stream
// an answer of ours. The tests TestOldEnvoy… run it.
const oldEnvoy = "HOLDGATE_OLD_ENVOY"

// runGateway runs an Envoy of somebody else.
func (s *site) runGateway(dir, text, listen, engine string) {
	s.t.Helper()
	host, port, err := net.SplitHostPort(listen)
	require.NoError(s.t, err)
	engineHost, enginePort, err := net.SplitHostPort(engine)
	require.NoError(s.t, err)
	text = strings.NewReplacer("LISTEN_HOST", host, "LISTEN_PORT", port, "ENGINE_HOST", engineHost, "ENGINE_PORT", enginePort, "SOCKETS", dir).Replace(text)
	bin := envoy.Binary{Path: os.Getenv(oldEnvoy)}
	if bin.Path == "" || !strings.HasPrefix(s.t.Name(), "TestOldEnvoy") {
		bin, err = envoy.Find(s.t.Context())
		require.NoError(s.t, err)
	}
	text += "\nadmin: {address: {pipe: {path: " + filepath.Join(dir, "admin.sock") + "}}}\n"
	s.envoy, err = bin.Start(context.Background(), envoy.Options{Bootstrap: []byte(text), Dir: dir, Concurrency: 1, Log: s.log})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, s.envoy.Stop(5*time.Second)) })
	s.url = "http://" + listen
}

// startBehindEnvoyGateway starts a site whose requests a gateway routes to an engine. log is
// the name of the gateway's access log, or empty if it has none, and flags may name --relay;
// GATEWAY in them is the gateway's address.
func startBehindEnvoyGateway(t *testing.T, engine, log string, flags ...string) *site {
	t.Helper()
	return startInGateway(t, "route", engine, func(dir, listen string) string { return envoyGateway(t, dir, listen, engine, log) }, flags)
}

// startInGateway starts a site whose Envoy is a gateway with the configuration that text returns.
// GATEWAY in flags is the gateway's address.
func startInGateway(t *testing.T, destination, engine string, text func(dir, listen string) string, flags []string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	listen := closedPort(t)
	all := []string{"--destination", destination}
	for _, flag := range flags {
		all = append(all, strings.ReplaceAll(flag, "GATEWAY", listen))
	}
	s.startApp(dir, all)
	s.runGateway(dir, text(dir, listen), listen, engine)
	require.Equal(t, http.StatusOK, s.putMap(testMap).status)
	return s
}

// between is a proxy between the relay and the gateway that keeps each request.
type between struct {
	*httptest.Server
	mu     sync.Mutex
	heads  []http.Header
	bodies []string
	change func(body string) string // nil: none
}

func startBetween(t *testing.T, gateway func() string) *between {
	t.Helper()
	b := &between{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		b.heads, b.bodies = append(b.heads, r.Header.Clone()), append(b.bodies, string(text))
		if b.change != nil {
			text = []byte(b.change(string(text)))
		}
		b.mu.Unlock()
		out, err := http.NewRequestWithContext(r.Context(), r.Method, gateway()+r.RequestURI, bytes.NewReader(text))
		if err != nil {
			return
		}
		out.Header, out.Host = r.Header.Clone(), r.Host
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(b.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return b
}

// last returns the head and the body of the last request.
func (b *between) last(t *testing.T) (http.Header, string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.NotEmpty(t, b.heads)
	return b.heads[len(b.heads)-1], b.bodies[len(b.bodies)-1]
}
