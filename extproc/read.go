// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// read reads a call of an endpoint, up to the decision. Its error is a *refusal.Refusal
// or errGone.
func (p *pass) read() error {
	rehold := p.lane == envoy.LaneRehold
	if p.head.upgrade && p.req.Endpoint.API == refusal.Responses {
		return refusal.NoWebSocket()
	}
	if p.head.bodyless() {
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

// authenticate finds the caller, once: the rehold lane has no keys. There the edge's pass
// has found it, in this process or in the one before it. That Envoy says so is enough over
// a unix socket, to which only its user may connect; over TCP it is not.
func (p *pass) authenticate() (why *refusal.Refusal) {
	fl := p.flight
	switch {
	case p.lane != envoy.LaneRehold:
		fl.call, why = p.s.d.Decider.Authenticate(Credentials{
			Method: p.req.Method, PathAndQuery: p.req.PathAndQuery,
			Authorization: p.head.authorization, APIKey: p.head.apiKey,
			// Envoy sets it; no client can.
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

// readFields reads the fields of the decision, and puts a model in the place of its
// alias. While it decodes a body it has the memory for that.
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
