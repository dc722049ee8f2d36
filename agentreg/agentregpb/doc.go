// SPDX-License-Identifier: Apache-2.0

// Package agentregpb is the generated code of the protocol between agents and
// routers, see agentreg.proto.
package agentregpb
