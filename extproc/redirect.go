// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// redirect sends the caller to the site that has the model. Only 307 keeps the
// method and the body.
func (st *stream) redirect(to *Redirect) error {
	st.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictRedirect, http.StatusTemporaryRedirect })
	headers := append(wire.HeaderList{
		{"location", to.Location}, {"cache-control", "no-store"}, {"content-type", "application/json"},
	}, st.cors()...)
	body := refusal.Redirected(st.req.Model, to.Site).Body(st.req.Endpoint.API) // for clients that do not follow
	st.send(wire.Immediate(http.StatusTemporaryRedirect, headers, body))
	return nil
}
