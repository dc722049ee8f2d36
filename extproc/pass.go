// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// other answers for a path that is no endpoint: the models API, or a JSON 404.
func (st *stream) other(lane string) error {
	model, models := st.head.models()
	switch {
	case !models:
		return st.refuse(refusal.NotFound(meantPath(string(st.head.pathOnly()))))
	case string(st.head.method) != http.MethodGet:
		return st.refuse(refusal.MethodNotAllowed(http.MethodGet))
	}
	if r := st.authenticate(lane); r != nil {
		return st.refuse(r)
	}
	body := st.flight.call.Models(model)
	if body == nil {
		return st.refuse(refusal.ModelNotFound(model))
	}
	st.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictServe, http.StatusOK })
	st.send(wire.Immediate(http.StatusOK, append(wire.HeaderList{{"content-type", "application/json"}}, st.cors()...), body))
	return nil
}

// pass sends a request on untouched, each message as it comes.
func (st *stream) pass() error {
	if !st.send(wire.PassHeaders()) || st.raw.End {
		return nil
	}
	for begun := false; ; {
		in := wire.Inbound{}
		if !st.receive(&in) {
			return nil
		}
		sent := true
		switch in.Kind {
		case wire.RequestBody:
			begun = true
			sent = st.send(wire.ForwardBody(in.Body, in.End))
		case wire.RequestTrailers:
			sent = st.send(endWithTrailers(begun))
		case wire.ResponseHeaders, wire.ResponseBody, wire.ResponseTrailers:
			sent = st.send(wire.PassResponse(&in, st.raw.DuplexResponse))
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
