// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// holdStream sends a streaming request and returns its answer when it has had a keepalive. One
// that finds a connection that is just being closed passes without the router, or fails: then
// another one is sent.
func (d *distant) holdStream() (lines *bufio.Reader) {
	d.t.Helper()
	d.eventually("a request is held", func() bool {
		resp, err := d.http.Do(d.request(d.t.Context(), http.MethodPost, chatPath, chatBody("m", true)))
		if err != nil {
			return false
		}
		lines = bufio.NewReader(resp.Body)
		if line, _ := lines.ReadString('\n'); line != ": keep-alive\n" {
			_ = resp.Body.Close()
			return false
		}
		d.t.Cleanup(func() { _ = resp.Body.Close() })
		return true
	})
	return lines
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
	lines := d.holdStream()

	waits := d.net.newest() // its connection

	// While the request waits, Envoy's certificate is replaced by one of another authority.
	next := certstest.New(t)
	d.replace(next, "envoy")
	d.net.cut(waits)
	d.refusedFor("is from another authority")
	keepalive(t, lines)
	d.copy(next.File, "envoys-ca.pem")
	d.healthy()
	d.replace(next, "envoy", certstest.Expired)
	d.eventually("an expired certificate is refused", func() bool {
		d.net.cut(waits)
		return strings.Contains(d.serve.out.String(), "certificate has expired")
	})
	d.replace(next, "envoy")
	d.healthy()
	conn, err := net.Dial("tcp", d.net.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	d.refusedFor("speaks no TLS")
	require.NoError(t, conn.Close())
	keepalive(t, lines)

	// Then the router's, and what waits goes on until its connection ends.
	d.replace(d.routers, "router", certstest.Named("other.example"))
	d.eventually("Envoy refuses the router", func() bool {
		d.net.cut(waits)
		return !strings.Contains(d.envoyAdmin("/stats?filter=cluster.holdgate.ssl.fail_verify_san"), "fail_verify_san: 0")
	})
	d.refusedFor("does not accept this server's certificate")
	keepalive(t, lines)
	d.replace(d.routers, "router", routerNames)
	d.healthy()
	d.net.cut()
	_, err = lines.ReadString('x')
	require.Error(t, err, "its connection was cut")
	d.metric(`hivenet_pending_demand{model="m"}`, "0")
	d.healthy()
	lines = d.holdStream()
	keepalive(t, lines)
	d.metric(`hivenet_pending_demand{model="m"}`, "1")
	require.Less(t, strings.Count(d.serve.out.String(), "a TLS connection failed"), 7, d.serve.out)
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

// short makes the times of the page short. The times of the filter do not matter, which it shows.
func short(t *testing.T, text string) string {
	t.Helper()
	for from, to := range map[string]string{
		"connection_keepalive: {interval: 10s, timeout: 10s}": "connection_keepalive: {interval: 1s, timeout: 1s}",
		"timeout: 2s\n      unhealthy_threshold: 2":           "timeout: 0.5s\n      unhealthy_threshold: 2",
		"{cluster_name: holdgate}, timeout: 0s}":              "{cluster_name: holdgate}, timeout: 1s}",
		"message_timeout: 5s":                                 "message_timeout: 0.2s",
	} {
		require.Contains(t, text, from)
		text = strings.Replace(text, from, to, 1)
	}
	return text
}

// The network loses all that is sent: Envoy notices it by its pings, ends what waits, and lets
// warm requests pass. When the network is whole again the router knows it, too, and nothing is
// left of what waited. Before that, pings each second have cut nothing.
func TestNetworkThatLosesEverything(t *testing.T) {
	t.Parallel()
	d := startDistant(t, distantOptions{change: func(text string) string { return short(t, text) }, flags: []string{"--wake-keepalive", "100ms"}})
	d.healthy()
	lines := d.holdStream()
	silent := d.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", "off")
	d.metric(`hivenet_pending_demand{model="m"}`, "2")
	for range 30 { // 3 s
		keepalive(t, lines)
	}
	d.net.lose(true)
	begin := time.Now()
	r := <-silent
	require.Equal(t, http.StatusInternalServerError, r.status, r.body)
	require.Less(t, time.Since(begin), 4*time.Second)
	_, err := io.ReadAll(lines)
	require.Error(t, err, "the answer that had begun is cut")
	d.eventually("a warm request passes", func() bool { return d.post(chatPath, chatBody("m", false)).status == http.StatusOK })
	require.Contains(t, d.metrics(), `hivenet_pending_demand{model="m"} 2`+"\n", "nobody has told the router yet")

	d.net.lose(false)
	d.metric(`hivenet_pending_demand{model="m"}`, "0")
	d.healthy()
	lines = d.holdStream()
	keepalive(t, lines)
	d.metric(`hivenet_pending_demand{model="m"}`, "1")
	d.eventually("no connection is left of before", func() bool { return d.net.open() <= 3 }) // one for each worker, and that of the health check
}

// The requests of many connections wait, of a real Envoy a thousand over one or two, and of other
// gateways five over each. The router is killed; all leave, and find the router that is back.
func TestNetworkManyConnections(t *testing.T) {
	t.Parallel()
	const throughEnvoy, gateways, each = 1000, 200, 5
	d := startDistant(t, distantOptions{plain: true, flags: []string{
		"--wake-hold-max", "3000", "--wake-hold-max-total", "3000", "--wake-hold-max-per-key", "3000", "--queue-depth", "3000",
	}})
	d.healthy()
	d.http.Transport.(*http.Transport).MaxIdleConnsPerHost = throughEnvoy
	hold := func() (real []<-chan result, played []*extproctest.Exchange) {
		for range throughEnvoy {
			real = append(real, d.start(t.Context(), chatPath, chatBody("m", false)))
		}
		for n := range gateways {
			g := d.pretend(fmt.Sprintf("192.0.2.%d", n))
			for range each {
				played = append(played, g.ask(t))
			}
		}
		d.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(throughEnvoy+gateways*each))
		return real, played
	}
	real, played := hold()
	require.LessOrEqual(t, d.net.open(), gateways+3)
	require.NoError(t, d.serve.cmd.Process.Kill())
	require.Error(t, d.serve.ends())
	for _, r := range real {
		<-r
	}
	for _, x := range played {
		require.Error(t, x.End())
	}
	d.startRouter()
	require.Equal(t, http.StatusOK, d.putMap(testMap).status)
	d.healthy()
	real, played = hold()
	d.net.cut() // the network breaks
	for _, r := range real {
		<-r
	}
	for _, x := range played {
		require.Error(t, x.End())
	}
	d.metric(`hivenet_pending_demand{model="m"}`, "0")
	d.healthy()
	real, _ = hold()
	d.wakeUp()
	for _, answer := range real {
		r := <-answer
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Contains(t, r.body, `{"answer":true}`)
	}
}

// Two routers of one site are behind one gateway, which takes them in turn: a request that was
// held at one comes back to the other, and a ticket is good once at both together.
func TestNetworkTwoRoutersBehindOneGateway(t *testing.T) {
	t.Parallel()
	valkey := valkeytest.Start(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(strings.Repeat("s", 32)), 0o600))
	second := &site{t: t, http: newHTTPClient(t), admin: valkeytest.FreeAddress(t)}
	var gateway atomic.Pointer[string]
	b := startBetween(t, func() string { return *gateway.Load() })
	agents := "unix://" + filepath.Join(t.TempDir(), "a.sock")
	flags := []string{"--hop-secret-file", secret, "--shared", valkey.URL() + "?prefix=site-1", "--relay", b.URL}
	var posts atomic.Int32 // without health checks
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"answer":true}`)
	}
	d := startDistant(t, distantOptions{plain: true, flags: flags, handler: answer, change: func(text string) string {
		at := valkeytest.FreeAddress(t)
		start(t, append([]string{
			"serve", "--destination", "route", "--extproc-listen", at, "--agents-listen", agents, "--admin-listen", second.admin,
			"--site-id", "here", "--wake-keepalive", "200ms",
		}, flags...)...).waitLog("holdgate is ready")
		_, port, _ := net.SplitHostPort(at)
		return strings.TrimRight(text, "\n") + "\n        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: " + port + "}}}\n"
	}})
	gateway.Store(&d.url)
	d.healthy()
	const held = 30
	var answers []<-chan result
	for range held {
		answers = append(answers, d.start(t.Context(), chatPath, chatBody("m", false)))
	}
	series := `hivenet_pending_demand{model="m"} `
	d.eventually("they wait at both", func() bool {
		n := 0
		for _, at := range []*site{d.site, second} {
			_, rest, _ := strings.Cut(at.metrics(), series)
			text, _, _ := strings.Cut(rest, "\n")
			here, _ := strconv.Atoi(text)
			if here == 0 {
				return false
			}
			n += here
		}
		return n == held
	})
	time.Sleep(someKeepalives)
	start(t, "agent", "--router", d.agents, "--router", agents, "--id", "a", "--engine", "custom", "--backend-url", "http://"+d.engine.addr(),
		"--model", "m", "--capability", "llm", "--capacity", "64")
	for _, answer := range answers {
		r := <-answer
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Contains(t, r.body, `{"answer":true}`)
	}
	require.Equal(t, held, int(posts.Load()))

	head, body := b.last(t)
	const again = 6
	for range again {
		r := d.post(chatPath, body, "X-Holdgate-Pass", head.Get("X-Holdgate-Pass"))
		require.Equal(t, http.StatusForbidden, r.status, r.body)
	}
	require.Equal(t, held, int(posts.Load()), "the engine got none of them")
	refused := `hivenet_passes_rejected_total{reason="used"} `
	for _, at := range []*site{d.site, second} {
		require.Contains(t, at.metrics(), refused)
		require.NotContains(t, at.metrics(), refused+"0\n", "both routers were asked")
	}
}
