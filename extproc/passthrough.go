// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// notOurs lets a request from a gateway pass that is not for the router. It refuses one that an
// engine may take for a call of an endpoint: without the router it would be served without a key, a
// quota and a slot.
func (p *pass) notOurs() error {
	if meant := p.head.equivalent(); meant != "" {
		p.begin()
		return p.refuse(refusal.NotFound(meant))
	}
	p.passThrough()
	return nil
}

// passThrough lets a request pass unchanged, message by message. It is for an Envoy that
// serves other applications too.
func (p *pass) passThrough() {
	if !p.send(p.passHeaders()) || p.first.End {
		return
	}
	for begun := false; ; {
		in := wire.Inbound{}
		if !p.receive(&in) {
			return
		}
		sent := true
		switch in.Kind {
		case wire.RequestBody:
			begun = true
			sent = p.send(wire.ForwardBody(in.Body, in.End))
		case wire.RequestTrailers:
			sent = p.send(endWithTrailers(begun))
		case wire.ResponseHeaders, wire.ResponseBody, wire.ResponseTrailers:
			sent = p.send(wire.PassResponse(&in, p.first.DuplexResponse))
		default:
			in.Free()
		}
		if !sent || in.End && in.Kind.OfRequest() {
			return // forward says why the stream ends
		}
	}
}

// endWithTrailers answers the trailers of a request. When a part of the body was sent on,
// it refuses the request, because Envoy may send the body twice: see forwardWhole.
func endWithTrailers(begun bool) any {
	if begun {
		return refused(refusal.RequestInvalid("a request with a body and trailers cannot be sent on; leave the trailers out"), refusal.OpenAI)
	}
	return wire.ForwardTrailers()
}
