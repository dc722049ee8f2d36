// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// models answers a request to a path that is no endpoint: the models API, or a JSON 404.
func (p *pass) models() error {
	model, ok := p.head.models()
	switch {
	case !ok:
		return p.refuse(refusal.NotFound(meantPath(string(p.head.pathOnly()))))
	case string(p.head.method) != http.MethodGet:
		return p.refuse(refusal.MethodNotAllowed(http.MethodGet))
	}
	if r := p.authenticate(); r != nil {
		return p.refuse(r)
	}
	body := p.flight.call.Models(model)
	if body == nil {
		return p.refuse(refusal.ModelNotFound(model))
	}
	p.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictServe, http.StatusOK })
	p.send(wire.Immediate(http.StatusOK, append(wire.HeaderList{{"content-type", "application/json"}}, p.cors.headers()...), body))
	return nil
}
