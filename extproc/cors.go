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

// cors makes the CORS headers of the answers to one request.
type cors struct {
	// on: the router allows some origins. Then it replaces the engine's CORS headers in
	// every answer, and engines do not see the origin.
	on     bool
	origin string // the origin that may read the answer; empty: none
}

func newCORS(allowed []string, origin string) cors {
	c := cors{on: len(allowed) > 0}
	switch {
	case origin == "":
	case slices.Contains(allowed, origin):
		c.origin = origin
	case slices.Contains(allowed, "*"):
		c.origin = "*"
	}
	return c
}

// headers returns the headers that let pages of the origin read an answer; nil: none may.
func (c cors) headers() wire.HeaderList {
	if c.origin == "" {
		return nil
	}
	return wire.HeaderList{{headerAllow, c.origin}, {headerVary, headerOrigin}, {headerExpose, exposed}}
}

// replaceIn replaces the CORS headers of a streamed head, in which each name may occur only
// once.
func (c cors) replaceIn(headers []*corev3.HeaderValue) []*corev3.HeaderValue {
	if !c.on {
		return headers
	}
	headers = slices.DeleteFunc(headers, func(h *corev3.HeaderValue) bool { return strings.HasPrefix(h.GetKey(), corsPrefix) })
	for _, kv := range c.headers() {
		at := slices.IndexFunc(headers, func(h *corev3.HeaderValue) bool { return h.GetKey() == kv[0] })
		if at < 0 {
			headers = append(headers, &corev3.HeaderValue{Key: kv[0], RawValue: []byte(kv[1])})
			continue
		}
		headers[at].RawValue = append(headers[at].GetRawValue(), ", "+kv[1]...) // vary
	}
	return headers
}

// forward makes Envoy replace the CORS headers of an answer that it carries.
func (c cors) forward(f *wire.ForwardHead) {
	if !c.on {
		return
	}
	f.Remove = append(f.Remove, headerOrigin)
	f.Metadata = append(f.Metadata, [2]string{envoy.CORSOriginKey, c.origin})
	if c.origin != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.CORSExposeKey, exposed})
	}
	f.Reroute = true
}

// isPreflight reports whether the request is a CORS preflight of an allowed origin.
func (p *pass) isPreflight() bool {
	return p.cors.origin != "" && string(p.head.method) == http.MethodOptions
}

// preflight answers a CORS preflight.
func (p *pass) preflight() error {
	headers := append(p.cors.headers(),
		[2]string{"access-control-allow-methods", "GET, POST, OPTIONS"},
		// The wildcard does not include Authorization.
		[2]string{"access-control-allow-headers", "authorization, *"},
		[2]string{"access-control-max-age", "600"})
	p.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictServe, http.StatusNoContent })
	p.send(wire.Immediate(http.StatusNoContent, headers, nil))
	return nil
}
