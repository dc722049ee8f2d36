// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// LateError is how an answer ends that failed after it had begun.
type LateError string

// The forms of late errors. In each of them the error itself is sent first.
const (
	// LateErrorAuto cuts the answer where an SDK would return it as a success: if
	// the caller is one, and does not stream.
	LateErrorAuto LateError = "auto"
	// LateErrorBody ends every answer cleanly.
	LateErrorBody LateError = "body"
	// LateErrorAbort cuts every answer.
	LateErrorAbort LateError = "abort"
)

// cuts reports whether an answer that failed is cut behind the error.
func (h *hold) cuts() bool {
	switch h.st.s.o.LateError {
	case LateErrorAbort:
		return true
	case LateErrorBody:
		return false
	default:
		return !h.st.req.Stream && h.st.head.sdk
	}
}

// late writes an error into an answer that has begun with status 200.
func (h *hold) late(r *refusal.Refusal) error {
	h.st.noteRefusal(r)
	api := h.st.req.Endpoint.API
	text := r.Body(api)
	if h.st.req.Stream {
		text = append([]byte(h.separator()), r.Event(api)...)
	}
	cut := h.cuts()
	h.st.send(wire.StreamBody(text, !cut))
	if cut {
		return abort(r.Code)
	}
	return nil
}

// abort cuts an answer that has begun: HTTP/1.1 clients see a broken chunked body,
// HTTP/2 clients a reset.
func abort(code string) error { return status.Error(codes.Aborted, code) }

// engineError reports an engine's error in a stream that has begun. The text of the
// error may be slow.
func (h *hold) engineError(resp *http.Response) error {
	refusals := make(chan *refusal.Refusal, 1)
	go func() { refusals <- refusal.FromEngine(resp.StatusCode, resp.Body) }()
	for {
		select {
		case r := <-refusals:
			return h.late(r)
		case <-h.tick:
			if !h.keepalive() {
				h.st.left()
				return nil
			}
		case <-h.st.gone:
			h.st.left()
			return nil
		}
	}
}
