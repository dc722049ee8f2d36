// SPDX-License-Identifier: Apache-2.0

// Package extproc is the data path: it serves Envoy's ext_proc streams, one for
// each pass of a request, and its access log. It knows no policy: a Decider says
// what happens to a request, and this package carries it out.
//
// A stream has one goroutine that receives and sends. A request that waits has a
// second one that only receives, so that a client that leaves is noticed; a relayed
// one has a third that calls the engine and reads its answer. All sending is done by
// the first.
package extproc
