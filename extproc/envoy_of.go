// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// headerForwardedFor has, on the streams that Envoy opens, the address of Envoy itself.
const headerForwardedFor = "x-forwarded-for"

// envoyOf returns the name by which Envoys are told apart: over a unix socket that of the process,
// else the address that the connection comes from, with Envoy's own if that is another one.
// Several Envoys may come from one address, because a network or a service mesh translates theirs.
func envoyOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	tcp, ok := p.Addr.(*net.TCPAddr)
	if !ok {
		return p.Addr.String()
	}
	from := tcp.AddrPort().Addr().Unmap().WithZone("") // each connection has its own port
	if own := ownAddress(ctx); own.IsValid() && own != from {
		return from.String() + " " + own.String()
	}
	return from.String()
}

// ownAddress returns the address that an Envoy says it has, the zero Addr if it says none.
func ownAddress(ctx context.Context) netip.Addr {
	values := metadata.ValueFromIncomingContext(ctx, headerForwardedFor)
	if len(values) == 0 {
		return netip.Addr{}
	}
	first, _, _ := strings.Cut(values[0], ",") // proxies on the way add theirs
	own, err := netip.ParseAddr(strings.TrimSpace(first))
	if err != nil {
		return netip.Addr{}
	}
	return own.Unmap().WithZone("")
}

// overUnix reports whether Envoy called over a unix socket.
func overUnix(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.Addr.Network() == "unix"
}
