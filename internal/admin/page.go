// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"net/http"
	"time"

	"github.com/holdgate/holdgate/internal/admin/page"
)

// policy is what browsers let the page do: nothing but with files of this address.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// handlePage adds the operator's page.
func (d Deps) handlePage(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", d.page)
	mux.HandleFunc("POST /{$}", d.unlock)
	mux.HandleFunc("GET /page/main", d.authorized(d.pageMain))
	mux.HandleFunc("GET /page/{file}", func(w http.ResponseWriter, r *http.Request) {
		content, contentType, ok := page.File(r.PathValue("file"))
		if !ok {
			fail(w, http.StatusNotFound, "not_found", "the page has no such file")
			return
		}
		pageHeaders(w, contentType)
		_, _ = w.Write(content)
	})
}

// pageHeaders sets the headers of each part of the page.
func pageHeaders(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// page answers with the whole page. If a token is needed and the request has none, the page asks
// for it and shows nothing else.
func (d Deps) page(w http.ResponseWriter, r *http.Request) {
	if !d.allowed(r.Header.Get("Authorization")) {
		d.writePage(w, http.StatusOK, &page.View{Protected: true, Locked: true})
		return
	}
	v := d.view()
	v.Protected = len(d.Tokens) > 0
	d.writePage(w, http.StatusOK, v)
}

// unlock answers the form of the token in a browser without scripts: with the page as it is now.
func (d Deps) unlock(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	if !d.allowed("Bearer " + r.PostFormValue("token")) {
		d.writePage(w, http.StatusUnauthorized, &page.View{Protected: true, Locked: true, Wrong: true})
		return
	}
	v := d.view()
	v.Protected = len(d.Tokens) > 0
	d.writePage(w, http.StatusOK, v)
}

// view returns what the page shows now.
func (d Deps) view() *page.View { return newView(d.Status(), d.Events.Decisions(), time.Now()) }

// pageMain answers with the part of the page that changes.
func (d Deps) pageMain(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	if err := page.WriteMain(&b, d.view()); err != nil {
		d.pageFailed(w, err)
		return
	}
	pageHeaders(w, "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes())
}

func (d Deps) writePage(w http.ResponseWriter, status int, v *page.View) {
	var b bytes.Buffer
	if err := page.Write(&b, v); err != nil {
		d.pageFailed(w, err)
		return
	}
	pageHeaders(w, "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

func (d Deps) pageFailed(w http.ResponseWriter, err error) {
	d.Log.Error().Err(err).Msg("rendering the page")
	fail(w, http.StatusInternalServerError, "internal", "the page could not be rendered")
}
