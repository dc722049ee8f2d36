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

// upload is the body of a pass and the memory that it takes. It is freed by free: when an
// engine of the relay lane has the whole request, or else at the end of the pass. Chunks
// that are sent back to Envoy leave it by next or rest, and gRPC frees them when it has
// sent them.
type upload struct {
	body      body.Body
	share     share
	held      []byte // the whole body, while the request waits
	trailers  bool   // they followed the body
	rewritten bool   // the body is not the client's: an alias was replaced, in identity coding
}

// add takes over what a message has of the body.
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

// charge takes memory for what has come of a body of at most limit bytes. Its error is a
// *refusal.Refusal or errGone.
func (u *upload) charge(ctx context.Context, h *head, limit int64, end bool) error {
	size := u.body.Size()
	if size > limit {
		return refusal.TooLarge(limit)
	}
	extra := h.coding.Extra(limit)
	most := cmp.Or(max(0, h.contentLength), limit) + extra
	if end {
		most = size + extra
		u.share.shrink(most)
	}
	return u.share.grow(ctx, size, most)
}

// reserve takes memory for extra bytes besides the body, which trim gives back.
func (u *upload) reserve(ctx context.Context, extra int64) error {
	n := u.body.Size() + extra
	return u.share.grow(ctx, n, n)
}

// trim gives back the memory that is more than the body.
func (u *upload) trim() { u.share.shrink(u.body.Size()) }

// hold moves the body to memory of its exact size, in which a waiting request keeps it.
func (u *upload) hold() { u.held = u.body.Settle() }

// next takes a chunk out of the body, to be sent, and reports whether it was the last one.
// It is nil when none is left.
func (u *upload) next() (chunk mem.Buffer, last bool) {
	u.held = nil
	return u.body.Next()
}

// rest takes all chunks out of the body, to be sent in one message.
func (u *upload) rest() []mem.Buffer {
	u.held = nil
	return u.body.Take()
}

// free frees the body and gives its memory back. A second call does nothing.
func (u *upload) free() {
	u.held = nil
	u.body.Free()
	u.share.shrink(0)
}
