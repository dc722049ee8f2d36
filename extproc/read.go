// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// read authenticates and reads a request to an endpoint, so that it can be decided. Its
// error is a *refusal.Refusal or errGone.
func (p *pass) read() error {
	rehold := p.lane == envoy.LaneRehold
	if p.head.upgrade && p.req.Endpoint.API == refusal.Responses {
		return refusal.NoWebSocket()
	}
	if !p.head.isCall() {
		return refusal.MethodNotAllowed(http.MethodPost)
	}
	if !rehold {
		if r := p.s.cameBack(p.head.via); r != nil {
			return r
		}
	}
	if r := p.authenticate(); r != nil {
		return r
	}
	if !rehold && p.head.tooLarge() {
		return refusal.HeadersTooLarge()
	}
	if r := p.head.refusal(p.s.o.MaxRequestBytes, p.first.End); r != nil {
		return r
	}
	if err := p.readBody(); err != nil {
		return err
	}
	if err := p.readFields(); err != nil {
		return err
	}
	if rehold {
		if r := p.flight.attemptFailed(p.head.failed, p.req.Model); r != nil {
			return r
		}
	}
	return nil
}

// authenticate finds the caller. Requests of the rehold lane have no keys: the edge's pass
// has authenticated them, in this process or in an earlier one. In the latter case the lane
// is trusted only over a unix socket, to which only the socket's owner can connect.
func (p *pass) authenticate() (why *refusal.Refusal) {
	fl := p.flight
	switch {
	case p.lane != envoy.LaneRehold:
		fl.call, why = p.s.d.Decider.Authenticate(Credentials{
			Method: p.req.Method, PathAndQuery: p.req.PathAndQuery,
			Authorization: p.head.authorization, APIKey: p.head.apiKey,
			// Set by Envoy; clients cannot set it.
			Metadata: wire.StructAt(p.first.Metadata, p.s.o.IdentityMetadata),
		})
		if why != nil {
			return why
		}
		fl.forward = fl.call.Forward()
	case fl.call != nil:
	case overUnix(p.gs.Context()):
		fl.call = p.s.d.Decider.Resume()
	default:
		return refusal.RouterRestarted()
	}
	p.req.Caller = fl.call.Caller()
	p.flight.noteRequest(&p.req)
	return nil
}

// readBody receives the body until its end. Its error is a *refusal.Refusal or errGone.
func (p *pass) readBody() error {
	for {
		in := wire.Inbound{}
		if !p.receive(&in) {
			return errGone
		}
		p.upload.add(&in)
		if err := p.upload.charge(p.gs.Context(), &p.head, p.s.o.MaxRequestBytes, in.End); err != nil || in.End {
			return err
		}
	}
}

// readFields reads the fields that the decision needs, and replaces an alias by its model.
// It holds the memory that decoding takes until it returns.
func (p *pass) readFields() error {
	limit, coding := p.s.o.MaxRequestBytes, p.head.coding
	if extra := coding.Extra(limit); extra > 0 {
		if err := p.upload.reserve(p.gs.Context(), extra); err != nil {
			return err
		}
		defer p.upload.trim()
	}
	body := &p.upload.body
	fields, err := body.ReadFields(p.req.Endpoint.Kind, coding, limit)
	if err != nil {
		return err
	}
	if r := p.flight.call.CheckBody(&p.req); r != nil {
		return r
	}
	if model := p.flight.call.Resolve(fields.Model); model != fields.Model {
		if err := body.SetModel(&fields, model, coding, limit); err != nil {
			return err
		}
		p.upload.rewritten = true
	}
	p.req.Fields = fields
	p.req.TextTokens = body.TextTokens()
	p.req.BodySize = body.Size()
	p.flight.noteRequest(&p.req)
	return nil
}
