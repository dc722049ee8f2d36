// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"crypto/x509"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
)

// holdStream sends a streaming request and returns when it has had a keepalive.
func (d *distant) holdStream() (answer *http.Response, lines *bufio.Reader) {
	d.t.Helper()
	resp, err := d.http.Do(d.request(d.t.Context(), http.MethodPost, chatPath, chatBody("m", true)))
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = resp.Body.Close() })
	lines = bufio.NewReader(resp.Body)
	keepalive(d.t, lines)
	return resp, lines
}

func keepalive(t *testing.T, lines *bufio.Reader) {
	t.Helper()
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, ": keep-alive\n", line)
}

// replace gives Envoy ("envoy") or the router ("router") another certificate.
func (d *distant) replace(a *certstest.Authority, name string, edits ...func(*x509.Certificate)) {
	d.t.Helper()
	cert, key := a.Issue(edits...)
	d.copy(key, name+"-key.pem")
	d.copy(cert, name+".pem")
}

// refusedFor waits for a line of the router about a connection that failed, for a reason.
func (d *distant) refusedFor(reason string) {
	d.t.Helper()
	d.serve.waitLog(`"setting":"extproc-tls-cert-file","peer":"127.0.0.1","reason":"[^"]*` + reason)
}

// Both certificates are replaced while a request waits, and are used for new connections. Wrong
// and expired ones are refused, each with one line.
func TestNetworkCertificates(t *testing.T) {
	t.Parallel()
	d := startDistant(t, distantOptions{})
	d.healthy()
	_, lines := d.holdStream()

	// While the request waits, Envoy's certificate is replaced by one of another authority.
	next := certstest.New(t)
	d.replace(next, "envoy")
	d.net.cut(1) // all but the connection with the request that waits
	d.refusedFor("is from another authority")
	keepalive(t, lines)
	d.copy(next.File, "envoys-ca.pem")
	d.healthy()
	keepalive(t, lines)

	// Then the router's, and what waits goes on until its connection ends.
	d.replace(d.routers, "router", certstest.Named("other.example"))
	d.eventually("Envoy refuses the router", func() bool {
		d.net.cut(1)
		return !strings.Contains(d.envoyAdmin("/stats?filter=cluster.holdgate.ssl.fail_verify_san"), "fail_verify_san: 0")
	})
	d.refusedFor("does not accept this server's certificate")
	keepalive(t, lines)
	d.replace(d.routers, "router", certstest.Named("router.example"))
	d.healthy()
	d.net.cut(0)
	_, err := lines.ReadString('x')
	require.Error(t, err, "its connection was cut")
	d.metric(`hivenet_pending_demand{model="m"}`, "0")
	d.healthy()
	_, lines = d.holdStream()
	keepalive(t, lines)
	d.metric(`hivenet_pending_demand{model="m"}`, "1")
	require.Less(t, strings.Count(d.serve.out.String(), "a TLS connection failed"), 5, d.serve.out)
}
