// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// idleTime is how long a connection may have no stream. A health check of the port, for
// example, opens such a connection.
const idleTime = 10 * time.Minute

// ServerOptions returns the options that a gRPC server of Service needs besides credentials
// and TokenAuth: it pings agents, so that a dead connection is found within the liveness
// time, and accepts the pings of agents.
func (r *Registry) ServerOptions() []grpc.ServerOption {
	every := max(r.opts.Liveness/3, time.Second)
	return []grpc.ServerOption{
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, Time: every, Timeout: every}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: protocol.PingTime / 2}),
	}
}
