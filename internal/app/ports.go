// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// What a peer of the admin API may take. The largest answer is that of /metrics, the largest
// request a sibling map.
const (
	adminHeaders = 10 * time.Second
	adminRead    = time.Minute
	adminWrite   = 2 * time.Minute
	adminIdle    = 2 * time.Minute
	adminHead    = 64 << 10 // bytes of a request's headers
)

// newAdminServer makes a server that bounds what a connection to the admin API may take.
func newAdminServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, MaxHeaderBytes: adminHead,
		ReadHeaderTimeout: adminHeaders, ReadTimeout: adminRead, WriteTimeout: adminWrite, IdleTimeout: adminIdle,
	}
}

// How long a peer of a gRPC port may take for its HTTP/2 preface, be without a stream, be
// silent, and take to answer a ping.
const (
	grpcHandshake = 10 * time.Second
	grpcIdle      = 10 * time.Minute
	grpcPing      = time.Minute
	grpcPong      = 20 * time.Second
)

// grpcLimits returns options that bound what a connection to a gRPC port may take. Later
// options override them.
func grpcLimits() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(grpcHandshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: grpcIdle, Time: grpcPing, Timeout: grpcPong}),
	}
}

// portLimits are how many connections each port may have.
type portLimits struct{ envoy, agents, admin, keda int }

// limitsFor divides the file descriptors of the process, so that each port leaves enough for
// the others and for relayed requests.
func limitsFor(total int) portLimits {
	return portLimits{
		envoy:  bounded(total/4, 16, 4096),
		agents: bounded(total/4, 16, 8192),
		admin:  bounded(total/16, 8, 256),
		keda:   bounded(total/16, 8, 256),
	}
}

func bounded(n, least, most int) int { return max(least, min(n, most)) }

// warnOfDescriptors logs when the held requests may need more descriptors than there are:
// each needs one when it is relayed.
func (a *App) warnOfDescriptors(total int) {
	l := limitsFor(total)
	need := a.c.WakeHoldMaxTotal + l.envoy + l.agents + l.admin + l.keda + ownDescriptors
	if need <= total {
		return
	}
	a.log.Warn().Int("rlimit_nofile", total).Int("wake_hold_max_total", a.c.WakeHoldMaxTotal).Int("needed", need).
		Msg("the process may have too few file descriptors to relay all requests that --wake-hold-max-total allows to be held: raise its limit (ulimit -n, LimitNOFILE= of systemd), or lower the flag")
}

// ownDescriptors are for files, sockets and outgoing calls.
const ownDescriptors = 64
