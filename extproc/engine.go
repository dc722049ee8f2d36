// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
)

// Engine says how a request is changed for the engine of a grant. An empty field changes
// nothing.
type Engine struct {
	// KeyHeader and Key are the header with the engine's own key, which replaces all keys
	// of the caller.
	KeyHeader, Key string
	// Host replaces the client's. NoOrigin: the engine refuses requests of web pages, so
	// it must not see the origin.
	Host     string
	NoOrigin bool
	// Prefix goes before the path.
	Prefix string
	// TLS names the authority of the engine's certificate, empty for plain HTTP, and SNI
	// the name in the certificate where that is not Host.
	TLS, SNI string
	// Pool is the pool whose lane leads to the engine, empty for none.
	Pool string
	// NotTaken are the statuses, separated by commas, with which a proxy in front of the
	// engine answers when the engine did not get the request.
	NotTaken string
}

// keyHeaders are the headers that may contain a key.
var keyHeaders = [...]string{headerAuthorization, headerAPIKey}

// engine returns how the request is changed for the engine of a grant. In the rehold lane
// the request arrives as it was changed for an earlier engine, so the flight stores the
// client's host, and that keys were replaced. Through a gateway, host, path and TLS are the
// gateway's.
func (fl *flight) engine(g holdstate.Grant, model string, h *head, to Destination) Engine {
	e := fl.call.Engine(model, g)
	if to.throughGateway() {
		e.Host, e.Prefix, e.TLS, e.SNI, e.Pool = "", "", "", "", ""
	}
	if e.KeyHeader != "" {
		fl.forward.StripKeys = true
	}
	if e.Host != "" && fl.host == "" {
		fl.host = h.authority()
	}
	return e
}

// engine returns how the request is changed for the engine of a grant.
func (p *pass) engine(g holdstate.Grant) Engine {
	return p.flight.engine(g, p.req.Model, &p.head, p.to)
}

// keys sets the engine's own key, and with strip removes all other keys.
func (e *Engine) keys(f *wire.ForwardHead, strip bool) {
	if e.KeyHeader != "" {
		f.Set = append(f.Set, [2]string{e.KeyHeader, e.Key})
	}
	for _, name := range keyHeaders {
		if strip && name != e.KeyHeader {
			f.Remove = append(f.Remove, name)
		}
	}
}

// forward makes Envoy send the request as the engine needs it.
func (e *Engine) forward(f *wire.ForwardHead, p *pass) {
	if host := cmp.Or(e.Host, p.flight.host); host != "" {
		f.Set = append(f.Set, [2]string{headerAuthority, host})
	}
	switch path := p.flight.forward.PathAndQuery; {
	case e.Prefix != "" || p.prefixed:
		f.Set = append(f.Set, [2]string{":path", e.Prefix + cmp.Or(path, p.req.PathAndQuery)})
	case path != "":
		f.Set = append(f.Set, [2]string{":path", path})
	}
	if e.NoOrigin {
		f.Remove = append(f.Remove, headerOrigin)
	}
	if e.NotTaken != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.NotTakenKey, e.NotTaken})
	}
	if e.TLS != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.TLSKey, e.TLS})
		f.Reroute = true
	}
	if e.Pool != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.PoolKey, e.Pool})
		f.Reroute = true
	}
	if e.SNI != "" {
		f.Set = append(f.Set, [2]string{envoy.SNIHeader, e.SNI})
	}
}

// relay changes a request to the relay lane in the same way.
func (e *Engine) relay(r *http.Request, host string) {
	if host = cmp.Or(e.Host, host); host != "" {
		r.Host = host
	}
	if e.KeyHeader != "" {
		r.Header.Set(e.KeyHeader, e.Key)
	}
	if e.NoOrigin {
		r.Header.Del(headerOrigin)
	}
	if e.TLS != "" {
		r.Header.Set(envoy.TLSHeader, e.TLS)
	}
	if e.Pool != "" {
		r.Header.Set(envoy.PoolHeader, e.Pool)
	}
	if e.SNI != "" {
		r.Header.Set(envoy.SNIHeader, e.SNI)
	}
}

// notTaken reports whether an answer is that of a proxy in front of the engine, for a
// request that the engine did not get: it has one of the statuses, and is not JSON, which
// engines answer in. Envoy applies the same rule to the answers that it carries
// (envoy.NotTakenKey).
func (e *Engine) notTaken(resp *http.Response) bool {
	return e.NotTaken != "" && strings.Contains(e.NotTaken, strconv.Itoa(resp.StatusCode)) &&
		!strings.Contains(resp.Header.Get("Content-Type"), "json")
}

// authority returns the host that the request is for.
func (h *head) authority() string {
	for name, value := range h.block.All() {
		if string(name) == headerAuthority {
			return string(value)
		}
	}
	return ""
}

// trimPrefix removes the prefix that was put before the path for the engine of an earlier
// attempt, and reports whether there was one.
func (h *head) trimPrefix() bool {
	path := h.pathOnly()
	i := bytes.LastIndex(path, []byte("/v1/"))
	if i <= 0 || endpoints[string(path[i:])] == nil {
		return false
	}
	h.path = h.path[i:]
	return true
}
