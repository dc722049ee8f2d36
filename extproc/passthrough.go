// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// passThrough sends a request on untouched, each message as it comes. It is for an Envoy
// that serves other applications too.
func passThrough(gs extprocv3.ExternalProcessor_ProcessServer, first *wire.Inbound) error {
	if gs.SendMsg(wire.PassHeaders()) != nil || first.End {
		return nil
	}
	for begun := false; ; {
		in := wire.Inbound{}
		if gs.RecvMsg(&in) != nil {
			return nil
		}
		sent := true
		switch in.Kind {
		case wire.RequestBody:
			begun = true
			sent = gs.SendMsg(wire.ForwardBody(in.Body, in.End)) == nil
		case wire.RequestTrailers:
			sent = gs.SendMsg(endWithTrailers(begun)) == nil
		case wire.ResponseHeaders, wire.ResponseBody, wire.ResponseTrailers:
			sent = gs.SendMsg(wire.PassResponse(&in, first.DuplexResponse)) == nil
		default:
			in.Free()
		}
		if !sent || in.End && in.Kind.OfRequest() {
			return nil // the stream ends as in forward
		}
	}
}

// endWithTrailers answers the trailers of a request. When a part of the body was sent on,
// there is no answer that is right whatever the route says: see forwardWhole.
func endWithTrailers(begun bool) any {
	if begun {
		return refused(refusal.RequestInvalid("a request with a body and trailers cannot be sent on; leave the trailers out"), refusal.OpenAI)
	}
	return wire.ForwardTrailers()
}
