// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"context"

	"google.golang.org/grpc/mem"

	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// upload is the body of a pass and the memory that it takes. It is freed when an engine
// has the whole request over the relay lane, or else at the end of the pass. gRPC frees the
// chunks that next and rest return when it has sent them back to Envoy.
type upload struct {
	body      body.Body
	share     share
	held      []byte // the whole body, while the request waits
	trailers  bool   // the request has trailers
	rewritten bool   // the body is not the client's: an alias was replaced, in identity coding
}

// add adds what a message contributes to the body. It owns the message.
func (u *upload) add(in *wire.Inbound) {
	switch in.Kind {
	case wire.RequestBody:
		u.body.Add(in.Body)
	case wire.RequestTrailers:
		u.trailers = true
	default:
		in.Free()
	}
}

// charge acquires memory for the bytes received so far; end means that there are no more.
// It refuses a body of more than limit bytes. Its error is a *refusal.Refusal or errGone.
func (u *upload) charge(ctx context.Context, h *head, limit int64, end bool) error {
	size := u.body.Size()
	if size > limit {
		return refusal.TooLarge(limit)
	}
	extra := h.coding.Extra(limit)
	final := cmp.Or(max(0, h.contentLength), limit) + extra
	if end {
		final = size + extra
		u.share.shrink(final)
	}
	return u.share.grow(ctx, size, final)
}

// reserve acquires memory for extra bytes in addition to the body. trim releases it.
func (u *upload) reserve(ctx context.Context, extra int64) error {
	n := u.body.Size() + extra
	return u.share.grow(ctx, n, n)
}

// trim releases the memory beyond the size of the body.
func (u *upload) trim() { u.share.shrink(u.body.Size()) }

// hold moves the body to memory of its exact size, for the wait.
func (u *upload) hold() { u.held = u.body.Settle() }

// next removes and returns the first chunk, to be sent, and reports whether it was the last
// one. chunk is nil when none is left.
func (u *upload) next() (chunk mem.Buffer, last bool) {
	u.held = nil
	return u.body.Next()
}

// rest removes and returns all chunks, to be sent in one message.
func (u *upload) rest() []mem.Buffer {
	u.held = nil
	return u.body.Take()
}

// free frees the body and releases its memory. A second call does nothing.
func (u *upload) free() {
	u.held = nil
	u.body.Free()
	u.share.shrink(0)
}
