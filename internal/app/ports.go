// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// The limits of a connection to the admin API. The largest response is that of /metrics, the
// largest request a sibling map.
const (
	adminHeaders = 10 * time.Second
	adminRead    = time.Minute
	adminWrite   = 2 * time.Minute
	adminIdle    = 2 * time.Minute
	adminHead    = 64 << 10 // bytes of a request's headers
)

// newAdminServer returns a server with the limits of the admin API.
func newAdminServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, MaxHeaderBytes: adminHead,
		ReadHeaderTimeout: adminHeaders, ReadTimeout: adminRead, WriteTimeout: adminWrite, IdleTimeout: adminIdle,
	}
}

// The limits of a connection to a gRPC port: how long its HTTP/2 handshake may take, how long
// it may be without a stream, how long it may be silent before a ping, and how long the
// answer to the ping may take.
const (
	grpcHandshake = 10 * time.Second
	grpcIdle      = 10 * time.Minute
	grpcPing      = time.Minute
	grpcPong      = 20 * time.Second
)

// grpcLimits returns the options with the limits of a gRPC port. Later options override them.
func grpcLimits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(grpcHandshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: grpcIdle, Time: grpcPing, Timeout: grpcPong}),
	}
}

// What differs on the port that Envoy connects to. Requests wait, and Envoy carries others with
// their slots, until the router notices that Envoy's machine or the network to it is gone.
const (
	envoyPing = 20 * time.Second
	envoyPong = 10 * time.Second
	envoyHead = 64 << 10 // bytes of a stream's headers, which have what the filter adds, not the request's
)

// envoyLimits returns the options with the limits of the port that Envoy connects to.
func envoyLimits() []grpc.ServerOption {
	return append(grpcLimits(),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: grpcIdle, Time: envoyPing, Timeout: envoyPong}),
		grpc.MaxHeaderListSize(envoyHead),
	)
}

// portLimits is how many connections each port may have.
type portLimits struct{ envoy, agents, admin, keda int }

// limitsFor returns the limits for a process with total file descriptors, so that each port
// leaves enough for the others and for relayed requests.
func limitsFor(total int) portLimits {
	return portLimits{
		envoy:  bounded(total/4, 16, 4096),
		agents: bounded(total/4, 16, 8192),
		admin:  bounded(total/16, 8, 256),
		keda:   bounded(total/16, 8, 256),
	}
}

func bounded(n, least, most int) int { return max(least, min(n, most)) }

// warnOfDescriptors logs a warning if the held requests may need more descriptors than there
// are: each needs one when it is relayed.
func (a *App) warnOfDescriptors(total int) {
	l := limitsFor(total)
	need := a.c.WakeHoldMaxTotal + l.envoy + l.agents + l.admin + l.keda + ownDescriptors
	if need <= total {
		return
	}
	a.log.Warn().Int("rlimit_nofile", total).Int("wake_hold_max_total", a.c.WakeHoldMaxTotal).Int("needed", need).
		Msg("the process may have too few file descriptors to relay all requests that --wake-hold-max-total allows to be held: raise its limit (ulimit -n, LimitNOFILE= of systemd), or lower the flag")
}

// ownDescriptors is how many descriptors are reserved for files, sockets and outgoing calls.
const ownDescriptors = 64
