// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/audit"
	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/internal/ticket"
	"github.com/holdgate/holdgate/internal/wake"
)

// Observer records what happens to requests in the metrics and the audit log. It implements
// extproc.Observer.
type Observer struct {
	Metrics *Metrics
	Audit   *audit.Log
	Recent  *wake.Recent
	Events  *events.Log
	Log     zerolog.Logger
}

// Routed counts a request's first slot.
func (o Observer) Routed(r *extproc.Request, g holdstate.Grant) {
	o.Metrics.routedTo(r, g)
	o.Recent.Touch(r.Model)
}

// Ended counts a request that has ended, and writes its audit line.
func (o Observer) Ended(r *extproc.Record) {
	o.Metrics.ended(r)
	if r.Outcome == holdstate.OutcomeExpired {
		o.Log.Info().Str("model", r.Request.Model).Str("request_id", r.Request.ID).
			Stringer("after", r.Held.Round(time.Millisecond)).Msg("hold expired")
	}
	o.Audit.Write(auditRecord(r))
}

// Freed logs that slots were freed because the engine has fewer requests.
func (o Observer) Freed(g holdstate.Grant, slots int) {
	o.Log.Warn().Str("agent", g.Replica().ID).Int("slots", slots).
		Msg("the engine has fewer requests than slots are taken: freed slots")
}

// TicketRefused counts a request that was refused because of its ticket.
func (o Observer) TicketRefused(why error) {
	o.Metrics.tickets.WithLabelValues(ticket.Class(why)).Inc()
}

// Noted adds an event.
func (o Observer) Noted(r *extproc.Request, n extproc.Note) {
	e := events.Event{Model: r.Model}
	if r.Endpoint != nil && r.Model != "" {
		e.Kind = r.Endpoint.Kind.String()
	}
	switch {
	case n.Held:
		e.Type = events.Held
	case n.Left:
		e.Type = events.Left
	case n.Redirect != nil:
		e.Type, e.Site = events.Redirected, n.Redirect.Site
	case n.Refusal != nil:
		e.Type, e.Status, e.Reason = events.Refused, n.Refusal.Status, n.Refusal.Code
	}
	o.Events.Add(e)
}

func auditRecord(r *extproc.Record) *audit.Record {
	a := &audit.Record{
		Time: time.Now(), RequestID: r.Request.ID, ClientRequestID: r.Request.ClientIDs[0], TraceID: r.TraceID,
		TenantID: r.Request.Caller.TenantID, KeyID: r.Request.Caller.KeyID, Model: r.Request.Model, Path: r.Route(), Decision: audit.Decision(r.Verdict),
		Status: r.Status, WireStatus: r.WireStatus, ErrorCode: r.ErrorCode, Attempts: r.Attempts, Upstream: r.Upstream,
		Held: r.Held, Queued: r.Queued, Duration: r.Duration, BytesIn: r.Request.BodySize, BytesOut: r.BytesOut,
		TokensIn: r.Usage.Input, TokensOut: r.Usage.Output, SourceIP: r.Source,
	}
	if r.Request.Endpoint != nil {
		a.Kind = r.Request.Endpoint.Kind.String()
	}
	if r.Outcome != holdstate.Pending {
		a.Outcome = r.Outcome.String()
	}
	if r.Grant != nil {
		a.AgentID = r.Grant.Replica().ID
	}
	return a
}
