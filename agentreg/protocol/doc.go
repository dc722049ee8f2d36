// SPDX-License-Identifier: Apache-2.0

// Package protocol holds what agents and routers agree on besides the messages of
// agentregpb: limits, names, codes and times. Both sides import it, so that an agent
// needs nothing of the router.
package protocol
