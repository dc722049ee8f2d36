// SPDX-License-Identifier: Apache-2.0

// Package grpctest connects the gRPC servers and clients of tests in memory. It works in
// a bubble of testing/synctest.
package grpctest

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// Unix is the address of a client on a unix socket.
func Unix() net.Addr { return &net.UnixAddr{Net: "unix"} }

// Loopback is the address of a client over loopback.
func Loopback() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// Listener is a listener in memory.
type Listener struct {
	*bufconn.Listener
	from func() net.Addr
}

// Listen makes a listener. Each connection comes from the address that from returns; from
// may be nil.
func Listen(from func() net.Addr) *Listener { return &Listener{bufconn.Listen(1 << 16), from} }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.from == nil {
		return c, err
	}
	return conn{c, l.from()}, nil
}

type conn struct {
	net.Conn
	from net.Addr
}

func (c conn) RemoteAddr() net.Addr { return c.from }

// Serve starts a server until the end of the test, and returns a client's connection to it.
func Serve(t testing.TB, s *grpc.Server, from func() net.Addr) *grpc.ClientConn {
	t.Helper()
	listener := Listen(from)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(listener)
	}()
	client, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.Close()
		s.Stop()
		<-served
	})
	return client
}
