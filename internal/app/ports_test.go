// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/internal/config"
)

// pipes is a listener in memory whose connections have deadlines.
type pipes struct {
	made   chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.made <- server
	return client
}

func TestConnectionsToTheAdminAPIEnd(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			_, _ = io.WriteString(w, large)
		}
	})
	for name, c := range map[string]struct {
		sent string
		read bool // the answer
		ends time.Duration
	}{
		"nothing sent":       {"", true, adminHeaders},
		"half the headers":   {"GET / HTTP/1.1\r\nHost: loc", true, adminHeaders},
		"half the body":      {"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf", true, adminRead},
		"idle":               {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", true, adminIdle},
		"an answer not read": {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", false, adminWrite},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, s := newPipes(), newAdminServer(h)
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }()
				conn := l.dial()
				begin := time.Now()
				_, err := io.WriteString(conn, c.sent)
				require.NoError(t, err)
				if !c.read {
					time.Sleep(adminWrite + 10*time.Second)
					n, err := io.Copy(io.Discard, conn)
					require.NoError(t, err)
					require.Less(t, n, int64(1<<20), "the rest was given up")
				} else {
					_, _ = io.Copy(io.Discard, bufio.NewReader(conn))
					require.LessOrEqual(t, time.Since(begin), c.ends+time.Second)
				}
				require.NoError(t, s.Close())
				require.ErrorIs(t, <-served, http.ErrServerClosed)
			})
		})
	}
}

func TestConnectionsToGRPCPortsEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits []grpc.ServerOption
		speaks bool // HTTP/2, and no more after its settings
		ends   time.Duration
	}{
		"says nothing":                    {grpcLimits(), false, grpcHandshake},
		"does not answer a ping":          {grpcLimits(), true, grpcPing + grpcPong},
		"Envoy, it says nothing":          {envoyLimits(), false, grpcHandshake},
		"Envoy, it does not answer pings": {envoyLimits(), true, envoyPing + envoyPong},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, s := newPipes(), grpc.NewServer(c.limits...)
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }()
				conn := l.dial()
				begin := time.Now()
				if c.speaks {
					var hello bytes.Buffer
					hello.WriteString(http2.ClientPreface)
					require.NoError(t, http2.NewFramer(&hello, nil).WriteSettings())
					go func() { _, _ = conn.Write(hello.Bytes()) }()
				}
				_, _ = io.Copy(io.Discard, conn)
				require.InDelta(t, c.ends.Seconds(), time.Since(begin).Seconds(), 1)
				s.Stop()
				require.NoError(t, <-served)
			})
		})
	}
}

func TestAPortHasALimitOfConnections(t *testing.T) {
	t.Parallel()
	var l listeners
	c := &config.Serve{ExtProcListen: "127.0.0.1:0", AgentsListen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", KEDAListen: "127.0.0.1:0"}
	require.NoError(t, l.open(t.Context(), c, portLimits{1, 1, 1, 1}, nil))
	for _, port := range []net.Listener{l.envoy, l.agents, l.admin, l.keda} {
		accepted := make(chan net.Conn, 2)
		go func() {
			defer close(accepted)
			for {
				conn, err := port.Accept()
				if err != nil {
					return
				}
				accepted <- conn
			}
		}()
		for range 2 {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", port.Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
		}
		first := <-accepted
		select {
		case <-accepted:
			require.Fail(t, "the second connection came while the first was open")
		case <-time.After(20 * time.Millisecond):
		}
		require.NoError(t, first.Close())
		require.NoError(t, (<-accepted).Close())
		require.NoError(t, port.Close())
	}
}

func TestPortsShareTheDescriptors(t *testing.T) {
	t.Parallel()
	require.Equal(t, portLimits{envoy: 32, agents: 32, admin: 8, keda: 8}, limitsFor(128))
	require.Equal(t, portLimits{envoy: 256, agents: 256, admin: 64, keda: 64}, limitsFor(1024))
	require.Equal(t, portLimits{envoy: 4096, agents: 8192, admin: 256, keda: 256}, limitsFor(1<<20))
}

func TestTooFewDescriptorsAreSaid(t *testing.T) {
	t.Parallel()
	for total, warned := range map[int]bool{128: true, 1024: true, 2048: true, 8192: false, 1 << 20: false} {
		var log bytes.Buffer
		a := &App{c: &config.Serve{WakeHoldMaxTotal: 1000}, log: zerolog.New(&log)}
		a.warnOfDescriptors(total)
		require.Equal(t, warned, strings.Contains(log.String(), "too few file descriptors"), total)
		if warned {
			require.Contains(t, log.String(), `"wake_hold_max_total":1000`)
		}
	}
}
