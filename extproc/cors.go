// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
)

const (
	headerOrigin = "origin"
	headerVary   = "vary"
	headerAllow  = "access-control-allow-origin"
	headerExpose = "access-control-expose-headers"
	corsPrefix   = "access-control-"
	exposed      = "location, retry-after, x-request-id"
)

// answersPages reports whether the router answers web pages: then every answer has
// its CORS headers, and engines neither see an origin nor have a say.
func (st *stream) answersPages() bool { return len(st.s.o.CORSOrigins) > 0 }

// allowedOrigin is the origin that may read the answer, empty for none.
func (st *stream) allowedOrigin() string {
	origin, allowed := st.head.origin, st.s.o.CORSOrigins
	switch {
	case origin == "":
		return ""
	case slices.Contains(allowed, origin):
		return origin
	case slices.Contains(allowed, "*"):
		return "*"
	}
	return ""
}

// cors are the headers with which a browser lets a page of a configured origin see
// an answer.
func (st *stream) cors() wire.HeaderList {
	origin := st.allowedOrigin()
	if origin == "" {
		return nil
	}
	return wire.HeaderList{{headerAllow, origin}, {headerVary, headerOrigin}, {headerExpose, exposed}}
}

// withCORS puts the router's CORS headers in the place of those in a streamed head,
// where a name may stand only once.
func (st *stream) withCORS(headers []*corev3.HeaderValue) []*corev3.HeaderValue {
	if !st.answersPages() {
		return headers
	}
	headers = slices.DeleteFunc(headers, func(h *corev3.HeaderValue) bool { return strings.HasPrefix(h.GetKey(), corsPrefix) })
	for _, kv := range st.cors() {
		at := slices.IndexFunc(headers, func(h *corev3.HeaderValue) bool { return h.GetKey() == kv[0] })
		if at < 0 {
			headers = append(headers, &corev3.HeaderValue{Key: kv[0], RawValue: []byte(kv[1])})
			continue
		}
		headers[at].RawValue = append(headers[at].GetRawValue(), ", "+kv[1]...) // vary
	}
	return headers
}

// forPages has Envoy do the same to an answer that it carries.
func forPages(f *wire.ForwardHead, origin string) {
	f.Remove = append(f.Remove, headerOrigin)
	f.Metadata = append(f.Metadata, [2]string{envoy.CORSOriginKey, origin})
	if origin != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.CORSExposeKey, exposed})
	}
	f.Reroute = true
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
	st.send(wire.Immediate(http.StatusNoContent, headers, nil))
	return true
}
