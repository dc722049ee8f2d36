// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
)

func TestTheNameOfAnEnvoy(t *testing.T) {
	t.Parallel()
	tcp := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 4000}
	for name, c := range map[string]struct {
		from net.Addr
		own  []string
		want string
	}{
		"a process":               {&net.UnixAddr{Net: "unix", Name: "pid 9"}, []string{"10.1.0.1"}, "pid 9"},
		"an address":              {tcp, nil, "10.0.0.9"},
		"its own":                 {tcp, []string{"10.0.0.9"}, "10.0.0.9"},
		"translated":              {tcp, []string{"10.1.0.1"}, "10.0.0.9 10.1.0.1"},
		"and a proxy on the way":  {tcp, []string{"10.1.0.1, 10.2.0.1"}, "10.0.0.9 10.1.0.1"},
		"the same, as IPv6":       {&net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.9")}, []string{"::ffff:10.0.0.9"}, "10.0.0.9"},
		"IPv6":                    {&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, []string{"fd00::1%x y"}, "fe80::1 fd00::1"},
		"no address":              {tcp, []string{"unknown"}, "10.0.0.9"},
		"an empty one":            {tcp, []string{""}, "10.0.0.9"},
		"no address, and a quote": {tcp, []string{"\"\n"}, "10.0.0.9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: c.from})
			if c.own != nil {
				ctx = metadata.NewIncomingContext(ctx, metadata.MD{headerForwardedFor: c.own})
			}
			require.Equal(t, c.want, envoyOf(ctx))
		})
	}
}

// gatewayAt is the way of a gateway to the router: it tells its own address.
type gatewayAt struct {
	grpc.ClientConnInterface
	own string
}

func (g gatewayAt) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption) (grpc.ClientStream, error) {
	return g.ClientConnInterface.NewStream(metadata.AppendToOutgoingContext(ctx, headerForwardedFor, g.own), d, method, o...)
}

// serve sends a request through the gateway, and returns its id.
func (g gatewayAt) serve(t *testing.T) (id string) {
	t.Helper()
	id = uuid.NewString()
	x := extproctest.Open(t, g, "", extproctest.Describe)
	x.Send(extproctest.Request(chatPath, gatewayBody, headerRequestID, id)...)
	synctest.Wait()
	x.RequireEnded(t, "0s serve on , 13 bytes", "0s body 13 end")
	return id
}

// Two gateways come from one address, because that of both is translated.
func TestGatewaysBehindOneAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own  [2]string
		want int // slots of the gateway without a log
	}{
		"with addresses of their own": {[2]string{"10.1.0.1", "10.1.0.2"}, 0},
		"as one Envoy":                {[2]string{"10.1.0.1", "10.1.0.1"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.routeAll()
				r.overTCP.Store(true)
				r.slots.up(engineA, 10)
				tells, silent := gatewayAt{r.conn, c.own[0]}, gatewayAt{r.conn, c.own[1]}
				record, end := logStreamOver(t, tells)
				record(tells.serve(t), envoy.ModeNative) // it tells from here on
				carried := tells.serve(t)
				require.Equal(t, 1, r.slots.taken())
				_ = silent.serve(t)
				require.Equal(t, 1+c.want, r.slots.taken(), "nobody says when the second one ends")
				record(carried, envoy.ModeNative)
				require.Equal(t, c.want, r.slots.taken())
				elapse(time.Second)
				end()
				elapse(envoyGone + time.Second)
			})
		})
	}
}

// The end of one gateway ends what it carried, though another one comes from the same address.
func TestAGatewayEndsThatSharesItsAddress(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.routeAll()
		r.overTCP.Store(true)
		r.slots.up(engineA, 10)
		first, second := gatewayAt{r.conn, "10.1.0.1"}, gatewayAt{r.conn, "10.1.0.2"}
		record1, end1 := logStreamOver(t, first)
		record2, end2 := logStreamOver(t, second)
		record1(first.serve(t), envoy.ModeNative)
		record2(second.serve(t), envoy.ModeNative)
		_ = first.serve(t)
		stays := second.serve(t)
		require.Equal(t, 2, r.slots.taken())
		elapse(time.Second)
		end1()
		elapse(envoyGone + time.Second)
		require.Equal(t, 1, r.slots.taken())
		record2(stays, envoy.ModeNative)
		require.Zero(t, r.slots.taken())
		end2()
	})
}

// logStreamOver is logStream for a gateway.
func logStreamOver(t *testing.T, g gatewayAt) (record func(id, mode string), end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := accesslogv3.NewAccessLogServiceClient(g).StreamAccessLogs(ctx)
	require.NoError(t, err)
	return logOver(t, stream, cancel, envoy.LogEdge)
}
