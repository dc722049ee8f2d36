// SPDX-License-Identifier: Apache-2.0

// Package extproc is the data path: it serves Envoy's ext_proc streams, one for each pass
// of a request, and its access log. It knows no policy: a Decider authenticates a request
// and decides what happens to it, and this package carries that out.
//
// Four types do it. A pass reads one stream and is the only one that sends on it; its
// loop, pass.answer, carries decisions out. A wait waits for a slot. A relay is one attempt
// over the relay lane. A flight is the request across its passes, until Envoy's record of
// it has come; it owns the slot of what Envoy carries. The body of a pass is its upload,
// the only owner of its memory.
//
// A stream has one goroutine that receives and sends. A request that waits has a second
// one that only receives, so that a client that leaves is noticed; a relay has a third
// that calls the engine and reads its answer. All sending is done by the first.
package extproc
