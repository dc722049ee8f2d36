// SPDX-License-Identifier: Apache-2.0

// Package extproc is the data path: it serves Envoy's ext_proc streams, one for each pass
// of a request, and receives Envoy's access log. It contains no policy: a Decider
// authenticates each request and decides what happens to it, and this package executes the
// decision.
//
// Its main types:
//   - pass is one ext_proc stream. It reads the request, and executes decisions in the
//     loop of pass.answer.
//   - wait is the wait of a request for a slot.
//   - relay is one attempt to get an answer from an engine over the relay lane.
//   - flight is a request across its passes, until its log entry arrives. It owns
//     the slot of a request that Envoy carries to an engine.
//   - upload is the body of a pass, and the only owner of its memory.
//
// A stream has one goroutine that receives and sends. A request that waits has a second
// one, which only receives, to notice when the client leaves; a relay has a third, which
// calls the engine and reads its answer. Only the first goroutine sends.
package extproc
