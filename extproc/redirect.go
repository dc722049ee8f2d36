// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"net/http"
	"slices"
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

// cors are the headers with which a browser lets a page of a configured origin see
// an answer of ours. Answers of engines have their own.
func (st *stream) cors() headerList {
	origin := st.head.origin
	allowed := st.s.o.CORSOrigins
	if origin == "" || !slices.Contains(allowed, origin) && !slices.Contains(allowed, "*") {
		return nil
	}
	if !slices.Contains(allowed, origin) {
		origin = "*"
	}
	return headerList{
		{"access-control-allow-origin", origin},
		{"vary", "origin"},
		{"access-control-expose-headers", "location, retry-after, x-request-id"},
	}
}

// preflight answers a browser's question whether a page may call. It is over then.
func (st *stream) preflight() bool {
	allowed := st.cors()
	if string(st.head.method) != http.MethodOptions || allowed == nil {
		return false
	}
	headers := append(slices.Clone(allowed),
		[2]string{"access-control-allow-methods", "GET, POST, OPTIONS"},
		// The wildcard does not stand for Authorization.
		[2]string{"access-control-allow-headers", "authorization, *"},
		[2]string{"access-control-max-age", "600"})
	st.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictServe, http.StatusNoContent })
	st.send(immediate(http.StatusNoContent, headers, nil))
	return true
}
