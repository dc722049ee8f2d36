// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// The gateway's listener has TLS, and clients speak HTTP/2 there. The relay checks its certificate,
// and uses one that replaces it.
func TestNetworkGatewayWithTLS(t *testing.T) {
	t.Parallel()
	authority := certstest.New(t)
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cert, key, secret := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "secret.yaml")
	replace := func(edits ...func(*x509.Certificate)) {
		authority.IssueTo(cert+".new", key+".new", edits...)
		require.NoError(t, os.Rename(key+".new", key))
		require.NoError(t, os.Rename(cert+".new", cert))
	}
	replace(certstest.Named("elsewhere.test"))
	require.NoError(t, os.WriteFile(secret, []byte(`resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: clients
  tls_certificate: {certificate_chain: {filename: `+cert+`}, private_key: {filename: `+key+`}}
`), 0o600))
	listen := valkeytest.FreeAddress(t)
	e := newEngine(t, nil)
	trusted := trusting(t, authority)
	clients := trusted.Clone()
	clients.ServerName = "elsewhere.test"
	s := &site{t: t, log: &buffer{}, http: &http.Client{Transport: &http.Transport{TLSClientConfig: clients, ForceAttemptHTTP2: true}}}
	t.Cleanup(s.http.CloseIdleConnections)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	s.startApp(dir, []string{"--destination", "route", "--relay", "https://" + listen, "--relay-ca-file", authority.File, "--wake-keepalive", "100ms", "--wake-late-error", "body"})
	_, listenPort, _ := net.SplitHostPort(listen)
	_, enginePort, _ := net.SplitHostPort(e.addr())
	text := strings.NewReplacer("port_value: 8080", "port_value: "+listenPort, "port_value: 8000", "port_value: "+enginePort, "/run/holdgate", dir, "    - filters:\n", `    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_certificate_sds_secret_configs:
            - {name: clients, sds_config: {resource_api_version: V3, path_config_source: {path: `+secret+`}}}
      filters:
`).Replace(block(t, "gateways/plain-envoy.md", "yaml", "static_resources:"))
	s.runGateway(dir, "node: {id: gateway-1, cluster: gateways}\n"+text, listen, e.addr())
	s.url = "https://" + listen
	require.Equal(t, http.StatusOK, s.putMap(testMap).status)

	hold := func(id string) result {
		held := s.start(t.Context(), chatPath, chatBody("m", false))
		s.metric(`hivenet_pending_demand{model="m"}`, "1")
		time.Sleep(someKeepalives)
		a := s.register(hello(id, e.addr(), 4, "m"))
		defer func() {
			a.leave()
			s.eventually("the agent has left", func() bool { return !strings.Contains(s.metrics(), `hivenet_agent_slots{agent_id="`+id+`"}`) })
		}()
		return <-held
	}
	r := hold("a")
	require.Contains(t, r.body, `"code":"backend_error"`)
	require.Contains(t, s.log.String(), "x509: cannot validate certificate for 127.0.0.1")
	require.Zero(t, e.count())

	replace()
	s.eventually("the new certificate is shown", func() bool {
		conn, err := tls.Dial("tcp", listen, trusted)
		return err == nil && conn.Close() == nil
	})
	r = hold("b")
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Contains(t, r.body, `{"answer":true}`)
	require.Equal(t, 1, e.count())
	s.atRest()
}

// trusting returns the configuration of a client that trusts an authority.
func trusting(t *testing.T, a *certstest.Authority) *tls.Config {
	t.Helper()
	roots, err := certs.ReadAuthorities(a.File)
	require.NoError(t, err)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "127.0.0.1"}
}
