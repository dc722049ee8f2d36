// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/reload"
)

// connection has one client connect to the credentials of a server, and returns whether the server
// accepted it.
func connection(t *testing.T, s *Server, log *bytes.Buffer, client func(net.Conn)) (accepted bool) {
	t.Helper()
	lis := grpctest.Listen(func() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 4000} })
	defer lis.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		near, err := lis.Dial()
		if err != nil {
			return
		}
		client(near)
		_ = near.Close()
	})
	far, err := lis.Accept()
	require.NoError(t, err)
	// The server's answer to a refused client is not read before the client writes.
	conn, _, err := s.Credentials(zerolog.New(log)).Clone().ServerHandshake(far)
	if err == nil {
		_, _ = conn.Write([]byte("x"))
		_ = conn.Close()
	}
	_ = far.Close()
	wg.Wait()
	return err == nil
}

// speakTLS returns a client that reads one byte.
func speakTLS(c *tls.Config) func(net.Conn) {
	return func(near net.Conn) {
		c := c.Clone()
		c.NextProtos = []string{"h2"}
		_, _ = tls.Client(near, c).Read(make([]byte, 1))
	}
}

func named(dns, uri string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses, c.URIs = nil, nil, nil
		if dns != "" {
			c.DNSNames = []string{dns}
		}
		if u, err := url.Parse(uri); err == nil && uri != "" {
			c.URIs = []*url.URL{u}
		}
	}
}

// A client that is refused causes one line with the reason in words of the router.
func TestRefusedClientsAreLogged(t *testing.T) {
	t.Parallel()
	ours, other := certstest.New(t), certstest.New(t)
	old := trusting(t, ours, ours)
	old.MaxVersion = tls.VersionTLS12
	const spiffe = "spiffe://cluster.local/ns/gateways/sa/envoy"
	for name, c := range map[string]struct {
		client func(net.Conn)
		reason string // empty: it is accepted
		silent bool
		tls12  bool
		names  []string
	}{
		"accepted":          {client: speakTLS(trusting(t, ours, ours))},
		"no certificate":    {client: speakTLS(trusting(t, ours, nil)), reason: "the client has no certificate"},
		"expired":           {client: speakTLS(trusting(t, ours, ours, certstest.Expired)), reason: "the client's certificate has expired, or is not valid yet"},
		"another authority": {client: speakTLS(withOwn(t, trusting(t, ours, nil), other)), reason: "the client's certificate is from another authority"},
		"for servers": {
			client: speakTLS(trusting(t, ours, ours, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })),
			reason: "the client's certificate is not for clients",
		},
		"plain text": {
			client: func(c net.Conn) { _, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) },
			reason: "the client speaks no TLS",
		},
		"it does not trust the router": {client: speakTLS(trusting(t, other, ours)), reason: "does not accept this server's certificate"},
		"TLS 1.2":                      {client: speakTLS(old), reason: "the client's TLS version is too old"},
		"TLS 1.2 where allowed":        {client: speakTLS(old), tls12: true},
		"gone at once":                 {client: func(net.Conn) {}, silent: true},
		"a DNS name that may":          {client: speakTLS(trusting(t, ours, ours, named("Envoy.test", ""))), names: []string{"other", "envoy.test"}},
		"a URI that may":               {client: speakTLS(trusting(t, ours, ours, named("", spiffe))), names: []string{spiffe}},
		"a URI that may, TLS 1.2": {
			client: speakTLS(old), names: []string{spiffe}, tls12: true,
			reason: "the client's certificate has none of the names that may connect",
		},
		"another name": {
			client: speakTLS(trusting(t, ours, ours, named("envoy.test", spiffe+"2"))), names: []string{spiffe, "test"},
			reason: "the client's certificate has none of the names that may connect",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, key := ours.Issue()
			f := files(cert, key, ours.File)
			f.ClientNames, f.TLS12 = c.names, c.tls12
			s, err := Load(f, reload.Options{})
			require.NoError(t, err)
			var log bytes.Buffer
			require.Equal(t, c.reason == "" && !c.silent, connection(t, s, &log, c.client), &log)
			if c.reason == "" {
				require.Empty(t, log.String())
				return
			}
			require.Equal(t, 1, strings.Count(log.String(), "\n"))
			require.Contains(t, log.String(), c.reason)
			require.Contains(t, log.String(), `"peer":"10.0.0.9"`)
		})
	}
}

// withOwn gives a client a certificate of an authority.
func withOwn(t *testing.T, c *tls.Config, own *certstest.Authority) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(own.Issue())
	require.NoError(t, err)
	// Go sends no certificate that the server does not ask for.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return c
}

// A client that tries again each second causes a line per minute, and many clients only so many.
func TestRefusalsAreCountedNotRepeated(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := &refusals{log: zerolog.New(&log), said: map[refusal]*said{}}
	lines := func() int { return strings.Count(log.String(), "\n") }
	plain := errors.New("tls: first record does not look like a TLS handshake")
	begin := time.Now()
	peer := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	for second := range 60 {
		peer.Port++
		r.note(peer, plain, begin.Add(time.Duration(second)*time.Second))
	}
	require.Equal(t, 1, lines())
	r.note(peer, errors.New("tls: client didn't provide a certificate"), begin)
	require.Equal(t, 2, lines(), "another reason")
	r.note(peer, plain, begin.Add(sayAgain))
	require.Equal(t, 3, lines())
	require.Contains(t, log.String(), `"more_since_the_last_line":59`)
	r.note(peer, os.ErrDeadlineExceeded, begin)
	require.Equal(t, 3, lines(), "it has gone away")

	for i := range 2 * mostRefusals {
		r.note(&net.TCPAddr{IP: net.IPv4(10, 1, byte(i>>8), byte(i)), Port: 1}, plain, begin.Add(sayAgain))
	}
	require.Len(t, r.said, mostRefusals)
	require.Less(t, lines(), 3+mostRefusals)
	r.note(&net.UnixAddr{Net: "unix", Name: "pid 9"}, plain, begin.Add(2*sayAgain))
	require.Len(t, r.said, 1)
	require.Contains(t, log.String(), fmt.Sprintf(`"peer":%q`, "pid 9"))
}
