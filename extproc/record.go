// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// Verdict is the first decision on a request.
type Verdict string

// The verdicts.
const (
	VerdictServe    Verdict = "serve"
	VerdictHold     Verdict = "hold"
	VerdictRedirect Verdict = "redirect"
	VerdictRefuse   Verdict = "refuse"
)

// Record describes a request that has ended, by what the router noted and what Envoy's
// access log says.
type Record struct {
	Request   Request
	Method    string
	TraceID   string
	Verdict   Verdict
	Outcome   holdstate.Outcome // Pending: it was not held
	Grant     holdstate.Grant   // the last one; nil: none
	Status    int               // the final status; 499: the client left; 0: unknown
	ErrorCode string            // of a refusal, or CodeRecordLost
	Held      time.Duration
	Queued    time.Duration

	// Of an answer that the router relayed, else zero.
	Usage      body.Usage
	FirstToken time.Duration // from the request's arrival; 0: it was no stream

	// From the log entry; zero without one.
	WireStatus int // the status that the client got; 0: none
	BytesOut   int64
	Duration   time.Duration
	Attempts   int
	Upstream   netip.AddrPort // not valid: none
	Source     netip.Addr     // not valid: unknown
}

// Route returns the endpoint's path, or "other" for any other path.
func (r *Record) Route() string {
	if r.Request.Endpoint == nil {
		return "other"
	}
	return r.Request.Endpoint.Path
}

// StatusClientGone is the status in the record of a request whose client left.
const StatusClientGone = 499

// carried notes that Envoy carries the request to a replica. logged completes the record.
func (r *Record) carried(g holdstate.Grant) {
	r.Grant = g
	if r.Verdict != VerdictHold {
		r.Verdict = VerdictServe
	}
	r.Status, r.ErrorCode = 0, ""
}

// waited adds the durations of a wait, and notes how a hold ended. Of several holds the
// first outcome stays, because the metric counts one hold per request.
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

// logged adds what the log entry says. The router's own status stays.
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

// method returns the metric label of a method, "other" for an unusual one.
func method(m string) string {
	switch m {
	case http.MethodPost, http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete, http.MethodPatch:
		return m
	}
	return "other"
}

// traceID returns the trace id of a W3C traceparent header, or an empty string.
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
