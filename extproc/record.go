// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// Verdict is the first word on a request.
type Verdict string

// The verdicts.
const (
	VerdictServe    Verdict = "serve"
	VerdictHold     Verdict = "hold"
	VerdictRedirect Verdict = "redirect"
	VerdictRefuse   Verdict = "refuse"
)

// Record is how a request ended: what we know of it, joined with what Envoy's
// access log says.
type Record struct {
	Request   Request
	Method    string
	TraceID   string
	Verdict   Verdict
	Outcome   holdstate.Outcome // Pending: it was not held
	Grant     holdstate.Grant   // the last one; nil: it had none
	Status    int               // what the request really ended with; 499: the client left; 0: nobody told us
	ErrorCode string            // of a refusal, or CodeRecordLost
	Held      time.Duration
	Queued    time.Duration

	// From Envoy's log; zero when it has none.
	WireStatus int // 0: nothing was sent
	BytesOut   int64
	Duration   time.Duration
	Attempts   int
	Upstream   netip.AddrPort // not valid: none
	Source     netip.Addr     // not valid: unknown
}

// Route is the endpoint's path, "other" for a path that is none.
func (r *Record) Route() string {
	if r.Request.Endpoint == nil {
		return "other"
	}
	return r.Request.Endpoint.Path
}

// StatusClientGone is the status on record of a request whose client left.
const StatusClientGone = 499

// carried notes that Envoy carries the request to a replica: its log tells the rest.
func (r *Record) carried(g holdstate.Grant) {
	r.Grant = g
	if r.Verdict != VerdictHold {
		r.Verdict = VerdictServe
	}
	r.Status, r.ErrorCode = 0, ""
}

// waited notes how long a wait took, and how a hold ended. Of several holds of one
// request the first outcome stands: it is the one that the metric has counted.
func (r *Record) waited(held, queued time.Duration, outcome holdstate.Outcome) {
	r.Held += held
	r.Queued += queued
	if r.Outcome == holdstate.Pending {
		r.Outcome = outcome
	}
}

// refuse notes how a request was refused.
func (r *Record) refuse(why *refusal.Refusal) {
	r.Status, r.ErrorCode = why.Status, why.Code
}

// logged adds what Envoy knows.
func (r *Record) logged(e *wire.LogEntry) {
	r.WireStatus, r.BytesOut, r.Duration = e.Status, e.BytesOut, e.Duration
	r.Attempts, r.Upstream, r.Source = e.Attempts, e.Upstream, e.Source
	switch {
	case r.Status != 0:
	case e.Left && !e.EngineEnded:
		r.Status = StatusClientGone
	default:
		r.Status = e.Status
	}
}

// method is a label's value: what is no usual method is "other".
func method(m string) string {
	switch m {
	case http.MethodPost, http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete, http.MethodPatch:
		return m
	}
	return "other"
}

// traceID is the trace of a W3C traceparent header, empty when it has none.
func traceID(traceparent []byte) string {
	const from, to, length = 3, 35, 55
	if len(traceparent) < length || traceparent[2] != '-' || traceparent[to] != '-' {
		return ""
	}
	for _, c := range traceparent[from:to] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return string(traceparent[from:to])
}
