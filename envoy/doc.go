// SPDX-License-Identifier: Apache-2.0

// Package envoy renders the bootstrap that Holdgate needs, checks bootstraps of other
// origin, and finds, validates with and runs the Envoy binary.
//
// A rendered bootstrap has three listeners:
//
//	edge    for clients; ext_proc sees the headers and the whole body
//	rehold  a unix socket for the second attempt of a request whose first
//	        destination refused the connection or died before it answered
//	relay   a unix socket without ext_proc, through which Holdgate itself calls
//	        an engine for a request that was held
//
// docs/envoy.md lists the settings that matter and why. Rendering is pure. Only Start
// leaves a goroutine behind: the one that waits for the child.
package envoy
