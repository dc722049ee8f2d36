// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

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

// fail ends the request with a refusal, in the form that is still possible.
func (a *answer) fail(r *refusal.Refusal) error {
	if !a.committed {
		return a.p.refuse(r)
	}
	return a.failLate(r)
}

// failLate writes an error into an answer that has begun with status 200.
func (a *answer) failLate(r *refusal.Refusal) error {
	p := a.p
	p.flight.noteRefusal(r)
	api := p.req.Endpoint.API
	text := r.Body(api)
	if p.req.Stream {
		text = append([]byte(a.separator()), r.Event(api)...)
	}
	cut := a.isCut()
	p.send(wire.StreamBody(text, !cut))
	if cut {
		return abort(r.Code)
	}
	return nil
}

// failBroken ends an answer that the engine did not finish. An error can follow a part of
// a stream, and keepalives, but no part of a plain answer.
func (a *answer) failBroken(message string) error {
	r := refusal.BrokenAnswer(message)
	onlyKeepalives := a.committed && len(a.tail) == 0
	if a.fixed || !a.p.req.Stream && !onlyKeepalives {
		a.p.flight.noteRefusal(r)
		return abort(r.Code)
	}
	return a.failLate(r)
}

// isCut reports whether an answer that failed is cut behind the error.
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

// separator ends the line and the event that an answer was cut in, so that an error
// event after it is one of its own.
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
