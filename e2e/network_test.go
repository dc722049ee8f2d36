// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/holdgate/holdgate/extproc/extproctest"
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

// pretended is a gateway that a test plays: a connection to the router on which it sends what
// Envoy sends, with an address of its own.
type pretended struct {
	*grpc.ClientConn
	own string
}

func (d *distant) pretend(own string) pretended {
	d.t.Helper()
	conn, err := grpc.NewClient(d.net.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = conn.Close() })
	return pretended{conn, own}
}

// ask sends a whole request.
func (p pretended) ask(t *testing.T) *extproctest.Exchange {
	t.Helper()
	x := extproctest.Open(t, p, "", extproctest.Describe)
	x.Send(extproctest.Request(chatPath, chatBody("m", true))...)
	return x
}

// NewStream has the header in which Envoy tells its own address.
func (p pretended) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption) (grpc.ClientStream, error) {
	return p.ClientConn.NewStream(metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", p.own), d, method, o...)
}

// Envoy tells its own address on the streams of the filter and of the log, so another gateway that
// comes from the same address of the network, and has no log, keeps no slot.
func TestNetworkGatewaysBehindOneAddress(t *testing.T) {
	t.Parallel()
	finish := make(chan struct{})
	d := startDistant(t, distantOptions{plain: true, flags: []string{"--log-level", "debug"}, handler: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Wait") != "" {
			<-finish
		}
		_, _ = io.WriteString(w, "ok")
	}})
	d.wakeUp()
	d.healthy()
	require.Equal(t, http.StatusOK, d.post(chatPath, chatBody("m", false)).status)
	own := d.serve.waitLog(`"envoy":"127\.0\.0\.1 ?([0-9.]*)",.*"an access log comes from this Envoy`)[1]
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addresses {
		if ip := a.(*net.IPNet).IP.To4(); ip != nil && !ip.IsLoopback() {
			require.NotEmpty(t, own)
		}
	}
	running := d.start(t.Context(), chatPath, chatBody("m", false), "X-Wait", "1")
	d.inUse(1) // the filter's stream and the log's have one name

	require.ErrorIs(t, d.pretend("192.0.2.7").ask(t).End(), io.EOF)
	d.inUse(1)
	close(finish)
	require.Equal(t, http.StatusOK, (<-running).status)
	d.inUse(0)
}
