// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// idleTime is how long a connection may have no stream, such as one that is for health
// checks of the port.
const idleTime = 10 * time.Minute

// ServerOptions are what the server of Service needs besides credentials and
// TokenAuth: pings find a connection whose other end is gone within the liveness
// time, and agents may do the same.
func (r *Registry) ServerOptions() []grpc.ServerOption {
	every := max(r.opts.Liveness/3, time.Second)
	return []grpc.ServerOption{
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, Time: every, Timeout: every}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: protocol.PingTime / 2}),
	}
}
