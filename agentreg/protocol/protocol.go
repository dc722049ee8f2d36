// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// Limits of a Hello.
const (
	MaxSlots  = 65536
	MaxLabels = 64
	MaxModels = 256
	MaxKinds  = 16
	// MaxNameBytes is the longest name of an agent, a model, an engine, a region, a
	// group or a label, and the longest value of a label.
	MaxNameBytes = 256
	// MaxRoom is the largest room of a group. It keeps sums of costs within an int64.
	MaxRoom = 1 << 44
)

// BackendPrefix is the prefix of the ids of backends without an agent. The router rejects it
// in the Hello of another process.
const BackendPrefix = "backend/"

// Codes of a Reject.
const (
	CodeInvalidHello      = "invalid_hello"
	CodeAddressNotAllowed = "address_not_allowed"
	CodeSuperseded        = "superseded"
)

// Each stream has the agent's token in its metadata, as an HTTP request would.
const (
	TokenKey    = "authorization"
	TokenScheme = "Bearer"
)

// RouterKey is the metadata key of a stream that is meant for a router that the one at the
// address has replaced. Its value is the id of that router.
const RouterKey = "holdgate-router"

// DefaultLiveness is how long an agent may be silent before a router removes it.
const DefaultLiveness = 15 * time.Second

// PingTime is how long an agent's connection may be silent before the agent sends an
// HTTP/2 ping to the router. gRPC allows no less.
const PingTime = 10 * time.Second

// Heartbeat returns the interval at which an agent must send a Status to a router with this
// liveness time.
func Heartbeat(liveness time.Duration) time.Duration { return liveness / 3 }
