// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"net/http"
)

// redirect sends the caller to the site that has the model. Only 307 keeps the
// method and the body.
func (st *stream) redirect(to *Redirect) error {
	st.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictRedirect, http.StatusTemporaryRedirect })
	headers := append(headerList{
		{"location", to.Location}, {"cache-control", "no-store"}, {"content-type", "application/json"},
	}, st.cors()...)
	st.send(immediate(http.StatusTemporaryRedirect, headers, to.body(st.req.Model, st.req.Endpoint.API)))
	return nil
}

// body is for clients that do not follow: an error whose text they show.
func (to *Redirect) body(model string, api API) []byte {
	r := &Refusal{
		Status: http.StatusTemporaryRedirect, Code: "redirected",
		Message: fmt.Sprintf("model %s is served by site %s: follow the Location of this answer", shown(model), to.Site),
	}
	var body struct {
		Redirect struct {
			Site string `json:"site"`
		} `json:"redirect"`
		envelope
	}
	body.Redirect.Site, body.envelope = to.Site, r.envelope(api)
	return marshal(body)
}
