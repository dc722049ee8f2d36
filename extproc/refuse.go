// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"strconv"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// refuse answers with a refusal. It must be the first message on the stream.
func (p *pass) refuse(r *refusal.Refusal) error {
	api := refusal.OpenAI
	if p.req.Endpoint != nil {
		api = p.req.Endpoint.API
	}
	if p.to == AsPicker {
		r = r.ByPicker()
	}
	p.noteRefusal(r)
	more := p.cors.headers()
	if p.rateLimit != "" {
		more = append(more, [2]string{headerRateLimit, p.rateLimit})
	}
	p.send(refused(r, api, more...))
	return nil
}

// refused returns the message that answers with a refusal.
func refused(r *refusal.Refusal, api refusal.API, more ...[2]string) *extprocv3.ProcessingResponse {
	headers := append(wire.HeaderList{{"content-type", "application/json"}}, more...)
	if r.RetryAfter > 0 {
		headers = append(headers, [2]string{"retry-after", strconv.Itoa(r.RetryAfter)})
	}
	if r.Allow != "" {
		headers = append(headers, [2]string{"allow", r.Allow})
	}
	return wire.Immediate(r.Status, headers, r.Body(api))
}

// redirect sends the caller to the site that has the model. Only 307 keeps the method
// and the body.
func (p *pass) redirect(to *Redirect) error {
	p.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictRedirect, http.StatusTemporaryRedirect })
	p.s.d.Observer.Noted(&p.req, Note{Redirect: to})
	headers := append(wire.HeaderList{
		{"location", to.Location}, {"cache-control", "no-store"}, {"content-type", "application/json"},
	}, p.cors.headers()...)
	body := refusal.Redirected(p.req.Model, to.Site).Body(p.req.Endpoint.API) // for clients that do not follow
	p.send(wire.Immediate(http.StatusTemporaryRedirect, headers, body))
	return nil
}
