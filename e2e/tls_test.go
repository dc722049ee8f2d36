// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/certs/certstest"
)

// Clients connect to the edge with TLS and HTTP/2, Envoy connects to Holdgate over TCP
// with mutual TLS, and a replaced certificate is used without a restart.
func TestTLSOnBothSidesOfEnvoy(t *testing.T) {
	t.Parallel()
	authority, envoys := certstest.New(t), certstest.New(t)
	routerCert, routerKey := authority.Issue()
	envoyCert, envoyKey := envoys.Issue()
	edgeCert, edgeKey := authority.Issue()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	extProc := closedPort(t)
	s := &site{t: t, log: &buffer{}}
	s.startApp(dir, []string{
		"--site-id=", "--extproc-listen", extProc, "--extproc-tls-cert-file", routerCert, "--extproc-tls-key-file", routerKey, "--extproc-client-ca-file", envoys.File,
	})
	c := envoy.Config{
		EdgeListen: "127.0.0.1:0", LanesDir: dir, ExtProc: extProc, SecretsDir: dir, EdgeCertFile: edgeCert, EdgeKeyFile: edgeKey,
		ExtProcCertFile: envoyCert, ExtProcKeyFile: envoyKey, ExtProcCAFile: authority.File,
	}
	files, err := envoy.Secrets(c)
	require.NoError(t, err)
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	b, err := envoy.Render(c)
	require.NoError(t, err)
	p := runEnvoy(t, b, dir, s.log)
	s.url = "https://" + p.EdgeAddr()

	text, err := os.ReadFile(authority.File)
	require.NoError(t, err)
	roots, err := certs.Authorities(text)
	require.NoError(t, err)
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "localhost"}
	s.http = &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	t.Cleanup(s.http.CloseIdleConnections)
	resp, err := s.http.Get(s.url + "/v1/models")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, 2, resp.ProtoMajor)

	for path, want := range map[string]string{"/healthz": `{"status":"ok"}`, "/readyz": `{"status":"ready"}`} {
		answer := s.do(s.request(t.Context(), http.MethodGet, path, ""))
		require.Equal(t, http.StatusOK, answer.status, path)
		require.Equal(t, want, answer.body)
		require.Equal(t, "application/json", answer.header.Get("Content-Type"))
	}

	nextCert, nextKey := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	authority.IssueTo(nextCert, nextKey, certstest.Named("next.test"))
	require.NoError(t, os.Rename(nextKey, edgeKey))
	require.NoError(t, os.Rename(nextCert, edgeCert))
	config = config.Clone()
	config.ServerName = "next.test"
	s.eventually("the new certificate is shown", func() bool {
		conn, err := tls.Dial("tcp", p.EdgeAddr(), config)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})

	// Without Holdgate the edge is alive, but not ready.
	require.NoError(t, s.app.Stop(t.Context()))
	answer := s.do(s.request(t.Context(), http.MethodGet, "/healthz", ""))
	require.Equal(t, http.StatusOK, answer.status)
	answer = s.do(s.request(t.Context(), http.MethodGet, "/readyz", ""))
	require.Equal(t, http.StatusServiceUnavailable, answer.status)
	require.Contains(t, answer.body, "router_unavailable")
}
