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

// cors is what browsers let web pages see of the answers to a request.
type cors struct {
	// on: pages of some origins may call. Then the router sets the CORS headers of every
	// answer in place of the engine's, and engines do not see the origin.
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

// headers are the headers with which a page of the origin may see an answer.
func (c cors) headers() wire.HeaderList {
	if c.origin == "" {
		return nil
	}
	return wire.HeaderList{{headerAllow, c.origin}, {headerVary, headerOrigin}, {headerExpose, exposed}}
}

// replaceIn puts the router's CORS headers in the place of those in a streamed head,
// where a name may stand only once.
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

// forward has Envoy do the same to an answer that it carries.
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

// isPreflight reports whether a browser asks for the permission of a page of an allowed
// origin.
func (p *pass) isPreflight() bool {
	return p.cors.origin != "" && string(p.head.method) == http.MethodOptions
}

// preflight gives the permission.
func (p *pass) preflight() error {
	headers := append(p.cors.headers(),
		[2]string{"access-control-allow-methods", "GET, POST, OPTIONS"},
		// The wildcard does not stand for Authorization.
		[2]string{"access-control-allow-headers", "authorization, *"},
		[2]string{"access-control-max-age", "600"})
	p.flight.note(func(r *Record) { r.Verdict, r.Status = VerdictServe, http.StatusNoContent })
	p.send(wire.Immediate(http.StatusNoContent, headers, nil))
	return nil
}
