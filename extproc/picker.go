// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/hint"
)

// As a picker the router names the addresses to which a gateway is to send a request: in a header
// and in dynamic metadata, as the endpoint picker protocol of the Gateway API inference extension
// says. Replicas have only addresses of the form ip:port, because the registry looks names up.

// hint returns the addresses to which the gateway restricts where the request may be sent, nil for
// any.
func (p *pass) hint() *hint.Hint {
	h := &hint.Hint{}
	if !wire.EachString(p.first.Metadata, envoy.HintNamespace, envoy.HintKey, func(text []byte) { h.Add(string(text)) }) {
		return nil
	}
	return h
}

// pick makes the gateway send a request to the first of the addresses that takes it. It replaces a
// header of the client.
func (s *Server) pick(f *wire.ForwardHead, h *head, addresses string) {
	f.Picked = addresses
	f.Set = append(f.Set, [2]string{envoy.PickedHeader, addresses}, [2]string{envoy.ViaHeader, h.via + s.name})
}

// sentHere reports whether this process has sent the request to a replica that sent it back: the
// replica is the gateway itself, or leads to it.
func (s *Server) sentHere(h *head) bool {
	for name := range strings.SplitSeq(h.via, ",") {
		if strings.TrimSpace(name) == s.name {
			return true
		}
	}
	return false
}

// strangerPicks reports whether the request names the addresses that it is to be sent to, which
// only the router may do where it is a picker for some model.
func (p *pass) strangerPicks() bool { return p.head.picked && p.s.d.Decider.Picks() }

// passHeaders returns the answer that lets the headers of a request pass.
func (p *pass) passHeaders() *wire.Outbound {
	if p.strangerPicks() {
		return wire.PassWithout(envoy.PickedHeader)
	}
	return wire.PassHeaders()
}
