// SPDX-License-Identifier: Apache-2.0

// Package protocol holds the limits, names, codes and times that agents and routers share
// besides the messages of agentregpb. It is a package of its own so that agents need not
// import the router's code.
package protocol
