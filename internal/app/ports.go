// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// How long a peer of the admin API may take. The largest answer is that of /metrics,
// the largest request a sibling map.
const (
	adminHeaders = 10 * time.Second
	adminRead    = time.Minute
	adminWrite   = 2 * time.Minute
	adminIdle    = 2 * time.Minute
	adminHead    = 64 << 10 // bytes of a request's headers
)

// newAdminServer bounds what a connection to the admin API can take.
func newAdminServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, MaxHeaderBytes: adminHead,
		ReadHeaderTimeout: adminHeaders, ReadTimeout: adminRead, WriteTimeout: adminWrite, IdleTimeout: adminIdle,
	}
}

// How long a peer of a gRPC port may take to say that it speaks HTTP/2, be idle, and
// be silent.
const (
	grpcHandshake = 10 * time.Second
	grpcIdle      = 10 * time.Minute
	grpcPing      = time.Minute
	grpcPong      = 20 * time.Second
)

// grpcLimits bound what a connection to a gRPC port can take. Options that come after
// them win.
func grpcLimits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(grpcHandshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: grpcIdle, Time: grpcPing, Timeout: grpcPong}),
	}
}

// portLimits are how many connections each port may have.
type portLimits struct{ envoy, agents, admin, keda int }

// limitsFor divides the file descriptors of the process, so that no port takes what the
// others and the relayed requests need.
func limitsFor(total int) portLimits {
	return portLimits{
		envoy:  bounded(total/4, 16, 4096),
		agents: bounded(total/4, 16, 8192),
		admin:  bounded(total/16, 8, 256),
		keda:   bounded(total/16, 8, 256),
	}
}

func bounded(n, least, most int) int { return max(least, min(n, most)) }

// warnOfDescriptors says that the held requests may need more descriptors than there
// are: each takes one when it is relayed.
func (a *App) warnOfDescriptors(total int) {
	l := limitsFor(total)
	need := a.c.WakeHoldMaxTotal + l.envoy + l.agents + l.admin + l.keda + ownDescriptors
	if need <= total {
		return
	}
	a.log.Warn().Int("rlimit_nofile", total).Int("wake_hold_max_total", a.c.WakeHoldMaxTotal).Int("needed", need).
		Msg("the process may have too few file descriptors to relay all requests that --wake-hold-max-total allows to be held: raise its limit (ulimit -n, LimitNOFILE= of systemd), or lower the flag")
}

// ownDescriptors are for files, sockets and calls of our own.
const ownDescriptors = 64
