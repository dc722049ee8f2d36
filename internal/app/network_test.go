// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/grpctest"
)

// network is the way from one Envoy to a router. It can lose all packets.
type network struct {
	*grpc.ClientConn
	lost atomic.Bool
}

// hole is a connection over a network.
type hole struct {
	net.Conn
	n    *network
	open context.Context
	end  context.CancelFunc
}

func (h *hole) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if h.n.lost.Load() { // what the router has sent does not arrive, and neither does its end
		<-h.open.Done()
		return 0, net.ErrClosed
	}
	return n, err
}

func (h *hole) Write(p []byte) (int, error) {
	if h.n.lost.Load() {
		return len(p), nil
	}
	return h.Conn.Write(p)
}

func (h *hole) Close() error {
	h.end()
	return h.Conn.Close()
}

// over connects an Envoy at an address over a network of its own.
func (r *rig) over(from net.Addr) *network {
	r.t.Helper()
	n, lis := &network{}, grpctest.Listen(func() net.Addr { return from })
	go func() { _ = r.App.envoy.Serve(lis) }()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := lis.DialContext(ctx)
		h := &hole{Conn: conn, n: n}
		h.open, h.end = context.WithCancel(context.WithoutCancel(ctx))
		return h, err
	}
	var err error
	n.ClientConn, err = grpc.NewClient("passthrough:///memory",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	require.NoError(r.t, err)
	return n
}

// ask sends a whole request over a network.
func (n *network) ask(t *testing.T) ask {
	t.Helper()
	x := extproctest.Open(t, n.ClientConn, envoy.LaneEdge, extproctest.Describe)
	x.Send(extproctest.Request("/v1/chat/completions", `{"model":"m"}`)...)
	synctest.Wait()
	return ask{x}
}

// When the packets from an Envoy do not arrive any more, what it has waiting leaves, and what it
// carried ends, in the times of docs/gateways/network.md.
func TestAnEnvoyThatIsNotReachedAnyMore(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		n := r.over(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 4000})
		defer n.Close()
		log, err := accesslogv3.NewAccessLogServiceClient(n).StreamAccessLogs(t.Context())
		require.NoError(t, err)
		require.NoError(t, log.Send(&accesslogv3.StreamAccessLogsMessage{
			Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: envoy.LogEdge},
		}))
		r.join(pb.State_STATE_SERVING, "half")
		carried := extproctest.Open(t, n.ClientConn, envoy.LaneEdge, extproctest.Describe)
		carried.Send(extproctest.Request("/v1/chat/completions", `{"model":"half"}`)...)
		synctest.Wait()
		held := n.ask(t)
		require.Equal(t, 1, r.demand("m"))
		require.Equal(t, 2, r.InFlight())

		n.lost.Store(true)
		begin := time.Now()
		for r.demand("m") > 0 {
			pass(time.Second)
		}
		require.LessOrEqual(t, time.Since(begin), envoyPing+envoyPong)
		for r.InFlight() > 0 {
			pass(time.Second)
		}
		require.LessOrEqual(t, time.Since(begin), envoyPing+envoyPong+11*time.Second)
		held.Reset()
		carried.Reset()
	})
}

// An Envoy may ping as often as once a second, and its connection is not closed for it.
func TestAnEnvoyMayPingEachSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, s := newPipes(), grpc.NewServer(append(envoyLimits(), extproc.ServerOptions()...)...)
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		conn := l.dial()
		frames := http2.NewFramer(conn, conn)
		go func() {
			_, _ = io.WriteString(conn, http2.ClientPreface)
			_ = frames.WriteSettings()
			for range 30 {
				time.Sleep(time.Second)
				_ = frames.WritePing(false, [8]byte{1})
			}
			_ = conn.Close()
		}()
		answered := 0
		for {
			f, err := frames.ReadFrame()
			if err != nil {
				break
			}
			require.NotEqual(t, http2.FrameGoAway, f.Header().Type, f)
			if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
				answered++
			}
		}
		require.GreaterOrEqual(t, answered, 29)
		s.Stop()
		require.NoError(t, <-served)
	})
}

// The health service on Envoy's port says under three names what /readyz says, and under one
// whether the process answers.
func TestHealthOnEnvoysPort(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		check := func(name string) string {
			a, err := healthpb.NewHealthClient(r.envoys).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil {
				return status.Code(err).String()
			}
			return a.GetStatus().String()
		}
		const service = "envoy.service.ext_proc.v3.ExternalProcessor"
		for _, name := range []string{"", "readiness", service, "liveness"} {
			require.Equal(t, "SERVING", check(name), name)
		}
		require.Equal(t, codes.NotFound.String(), check("other"))
		r.draining.Store(true)
		for _, name := range []string{"", "readiness", service} {
			require.Equal(t, "NOT_SERVING", check(name), name)
		}
		require.Equal(t, "SERVING", check("liveness"))
	})
}
