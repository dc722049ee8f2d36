// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strconv"

	"google.golang.org/grpc/mem"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
)

// serve lets Envoy carry the request to a replica, and its answer back.
func (st *stream) serve(g holdstate.Grant) error {
	e := st.engine(g)
	if !st.flight.carry(g) {
		st.left() // its record has come already
		return nil
	}
	st.routed(g)
	st.native = true
	f := wire.ForwardHead{
		Metadata: wire.HeaderList{
			{envoy.ModeKey, envoy.ModeNative},
			{envoy.FirstKey, g.Replica().Address},
			{envoy.ContentLengthKey, strconv.FormatInt(st.body.Size(), 10)},
		},
		Remove: st.head.private,
	}
	if st.rateLimit != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.RateLimitKey, st.rateLimit})
	}
	if st.rewritten {
		f.Remove = append(f.Remove, "content-encoding")
	}
	e.keys(&f, st.flight.forward.StripKeys)
	if st.answersPages() {
		forPages(&f, st.allowedOrigin())
	}
	e.serve(&f, st)
	if st.timing != "" {
		f.Metadata = append(f.Metadata, [2]string{envoy.ServerTimingKey, st.timing})
	}
	if string(st.head.requestID) != st.flight.id {
		f.Set = append(f.Set, [2]string{headerRequestID, st.flight.id})
	}
	if st.trailers {
		return st.forwardWhole(&f)
	}
	return st.forward(f.Encode())
}

// forward sends the headers' answer and then the body as it came. From here on the
// answer is Envoy's: an error would cut it, so there is none. The stream ends, or an
// Envoy whose response modes are not SKIP or NONE would wait for a word on the answer.
// Envoy may send the last chunk of a large body twice: nobody reads the second, whose
// buffer is the garbage collector's.
func (st *stream) forward(first *wire.Outbound) error {
	if !st.send(first) {
		return nil
	}
	chunks := st.body.Take()
	st.payload = nil
	for i, chunk := range chunks {
		if !st.send(wire.ForwardBody(chunk, i == len(chunks)-1)) {
			mem.BufferSlice(chunks[i+1:]).Free()
			return nil
		}
	}
	return nil
}

// forwardWhole sends the headers' answer with the whole body in it. Behind a body that
// is sent back in chunks, Envoy (1.37.0, 1.40.0) ends a request with trailers only
// once they are answered, and then writes what the router has kept for a retry, the
// whole body, to the engine a second time.
func (st *stream) forwardWhole(f *wire.ForwardHead) error {
	st.payload = nil
	st.send(f.EncodeWith(st.body.Take(), st.body.Size()))
	return nil
}
