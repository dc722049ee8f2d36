// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strconv"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
)

// serve lets Envoy carry the request to a replica, and its answer back.
func (p *pass) serve(g holdstate.Grant) error {
	e := p.engine(g)
	if p.to.throughGateway() && !p.s.logs.tell(p.flight.envoy) {
		defer p.sentOn(g)
	} else if !p.flight.carry(g) {
		p.left() // Envoy has ended the request already
		return nil
	}
	p.hasSlot(g)
	p.carried = true
	f := wire.ForwardHead{
		// Room for the destination: most requests have no other.
		Metadata: append(make(wire.HeaderList, 0, 3),
			[2]string{envoy.ModeKey, envoy.ModeNative},
			[2]string{envoy.ContentLengthKey, strconv.FormatInt(p.upload.body.Size(), 10)},
		),
		Remove: p.head.private,
	}
	p.destination(&f, g)
	if p.rateLimit != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.RateLimitKey, p.rateLimit})
	}
	if p.upload.rewritten {
		f.Remove = append(f.Remove, "content-encoding")
	}
	e.keys(&f, p.flight.forward.StripKeys)
	p.cors.forward(&f)
	e.forward(&f, p)
	if p.timing != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.ServerTimingKey, p.timing})
	}
	if string(p.head.requestID) != p.flight.id {
		f.Set = append(f.Set, [2]string{headerRequestID, p.flight.id})
	}
	if p.upload.trailers {
		p.forwardWhole(&f)
	} else {
		p.forward(f.Encode())
	}
	return nil
}

// destination says where Envoy is to send the request.
func (p *pass) destination(f *wire.ForwardHead, g holdstate.Grant) {
	switch p.to {
	case ToReplica:
		f.Metadata = append(f.Metadata, [2]string{envoy.FirstKey, g.Replica().Address})
	case ByRoute:
		if p.strangerPicks() {
			f.Remove = append(f.Remove, envoy.PickedHeader)
		}
	case AsPicker:
		p.s.pick(f, &p.head, p.flight.call.Picked(g))
	}
}

// forward sends the answer to the headers and then the body as received. It returns no
// error, because that would cut the answer, which Envoy carries from here on. The stream
// ends after it, because an Envoy whose response modes are not SKIP or NONE would wait for
// messages about the answer. Envoy may send the last chunk of a large body twice: the
// second is not read, and its buffer is left to the garbage collector.
func (p *pass) forward(first *wire.Outbound) {
	if !p.send(first) {
		return
	}
	for chunk, last := p.upload.next(); chunk != nil; chunk, last = p.upload.next() {
		if !p.send(wire.ForwardBody(chunk, last)) {
			return
		}
	}
}

// forwardWhole sends the answer to the headers with the whole body in it. After a body that
// is sent back in chunks, Envoy (1.37.0, 1.40.0) ends a request with trailers only once
// they are answered, and then writes what its router filter has kept for a retry, the
// whole body, to the engine a second time.
func (p *pass) forwardWhole(f *wire.ForwardHead) {
	p.send(f.EncodeWith(p.upload.rest(), p.upload.body.Size()))
}
