// SPDX-License-Identifier: Apache-2.0

// Package envoy renders the bootstrap that Holdgate needs, checks somebody
// else's, and finds, validates with and runs the Envoy binary.
//
// A rendered bootstrap has three listeners:
//
//	edge    what clients reach; ext_proc sees the headers and the whole body
//	rehold  a unix socket where the second attempt of a request lands when its
//	        first destination took no connection or died before it answered
//	relay   a unix socket without ext_proc, through which Holdgate itself calls
//	        an engine for a request that was held
//
// Which settings matter and why stands in docs/envoy.md. Rendering is pure.
// Only Start leaves a goroutine behind: the one that waits for the child.
package envoy
