// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// LateError says how to end an answer that fails after it has begun.
type LateError string

// The ways to end such an answer. With each of them the error itself is sent first.
const (
	// LateErrorAuto cuts the answer to an SDK that does not stream, which would return
	// the error as a success. It ends every other answer cleanly.
	LateErrorAuto LateError = "auto"
	// LateErrorBody ends every answer cleanly.
	LateErrorBody LateError = "body"
	// LateErrorAbort cuts every answer.
	LateErrorAbort LateError = "abort"
)

// fail ends the request with a refusal, as a late error if the answer has begun.
func (a *answer) fail(r *refusal.Refusal) error {
	if !a.committed {
		return a.p.refuse(r)
	}
	return a.failLate(r)
}

// failLate writes an error into an answer that has begun with status 200.
func (a *answer) failLate(r *refusal.Refusal) error {
	p := a.p
	p.noteRefusal(r)
	api := p.req.Endpoint.API
	text := r.Body(api)
	switch own := r.EngineText(); {
	case p.req.Stream:
		text = append([]byte(a.separator()), r.Event(api)...)
	case own != nil: // whatever content type it has
		text = own
	}
	cut := a.isCut()
	p.send(wire.StreamBody(text, !cut))
	if cut {
		return abort(r.Code)
	}
	return nil
}

// failBroken ends an answer that the engine did not finish. An error can follow keepalives
// or a part of an event stream, but not a part of another answer.
func (a *answer) failBroken(message string) error {
	r := refusal.BrokenAnswer(message)
	onlyKeepalives := a.committed && len(a.tail) == 0
	if a.fixed || !a.p.req.Stream && !onlyKeepalives {
		a.p.noteRefusal(r)
		return abort(r.Code)
	}
	return a.failLate(r)
}

// isCut reports whether an answer that failed is cut after the error.
func (a *answer) isCut() bool {
	switch a.p.s.o.LateError {
	case LateErrorAbort:
		return true
	case LateErrorBody:
		return false
	default:
		return !a.p.req.Stream && a.p.head.sdk
	}
}

// separator returns the newlines that end the line and the event in which an answer broke
// off, so that an error event can follow.
func (a *answer) separator() string {
	switch tail := string(a.tail); {
	case tail == "", tail == "\n\n":
		return ""
	case strings.HasSuffix(tail, "\n"):
		return "\n"
	default:
		return "\n\n"
	}
}

// abort cuts an answer that has begun: HTTP/1.1 clients see a broken chunked body,
// HTTP/2 clients a reset.
func abort(code string) error { return status.Error(codes.Aborted, code) }
