// SPDX-License-Identifier: Apache-2.0

// Package observe reports what the router does: in metrics, in a line of the audit log for
// each request, and in the status of the admin API.
package observe

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/ticket"
)

// Options are the settings of the metrics.
type Options struct {
	Prefix string
	// Tenants returns the tenants that are known before they send a request, sorted.
	Tenants func() []string
	// Held returns the models whose requests may be held; nil: there are none.
	Held func() []string
	// Known reports whether a model is known here, so that its name may be a label; nil: none is.
	Known func(model string) bool
	// Identities: requests may come from tenants that Tenants does not return.
	Identities bool
}

// Metrics are the metrics of events: what happened to requests and models. Its methods
// are safe for concurrent use.
type Metrics struct {
	o        Options
	holds    *prometheus.CounterVec
	held     prometheus.Histogram
	routed   *routed
	requests *prometheus.HistogramVec
	wakes    *prometheus.HistogramVec
	lost     prometheus.Counter
	tokens   *prometheus.CounterVec
	tickets  *prometheus.CounterVec
	tenants  tenantLabels
	models   models // the models with a series of what follows

	failures *counts // of wakes
	losses   *counts // of replicas
	usage    *tokens
	genAI    *genAI

	// rejections and queued are about models that are up.
	rejections *prometheus.CounterVec
	queued     *prometheus.HistogramVec
}

// histogram returns the options of a histogram with native buckets besides the classic ones,
// for scrapers that support them.
func histogram(name, help string, buckets ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}
}

// NewMetrics creates and registers the metrics.
func NewMetrics(reg prometheus.Registerer, o Options) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		o: o,
		holds: f.NewCounterVec(prometheus.CounterOpts{
			Name: o.Prefix + "wake_holds_total",
			Help: "Requests that were held, or refused by a hold limit, by how they ended.",
		}, []string{"outcome"}),
		held: f.NewHistogram(histogram(o.Prefix+"wake_hold_seconds",
			"How long requests were held, whatever their outcome, in seconds.",
			.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1800, 3600)),
		routed: newRouted(o.Prefix, o.Tenants),
		requests: f.NewHistogramVec(histogram("http_server_request_duration_seconds",
			"How long requests took, by the status they ended with, in seconds.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
			[]string{"method", "route", "status_code"}),
		wakes: f.NewHistogramVec(histogram(o.Prefix+"wake_seconds",
			"How long wakes took, from the first request that waited to the first replica, in seconds.",
			.25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1800, 3600),
			[]string{"model"}),
		rejections: f.NewCounterVec(prometheus.CounterOpts{
			Name: o.Prefix + "admission_rejections_total",
			Help: "Requests for a model that is up that were refused, by reason.",
		}, []string{"reason", "model"}),
		queued: f.NewHistogramVec(histogram(o.Prefix+"queue_wait_seconds",
			"How long requests waited for a slot, without those that got one at once, in seconds.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),
			[]string{"model"}),
		lost: f.NewCounter(prometheus.CounterOpts{
			Name: o.Prefix + "lost_records_total",
			Help: "Requests whose access-log entry was lost, so that their status is not known.",
		}),
		tokens: f.NewCounterVec(prometheus.CounterOpts{
			Name: o.Prefix + "hop_tokens_rejected_total",
			Help: "Tokens of redirected requests that were not accepted, by reason.",
		}, []string{"reason"}),
		tickets: f.NewCounterVec(prometheus.CounterOpts{
			Name: o.Prefix + "passes_rejected_total",
			Help: "Requests whose header x-holdgate-pass was not accepted, by reason.",
		}, []string{"reason"}),
	}
	m.failures = newCounts(o.Prefix+"wake_failures_total", "Wakes of the model that failed.", o.Held)
	m.losses = newCounts(o.Prefix+"replica_losses_total", "Replicas of the model that left routing although nobody asked for it.", o.Held)
	m.usage = newTokens(o.Prefix + "tokens_total")
	reg.MustRegister(m.routed, m.failures, m.losses, m.usage)
	if o.Known == nil {
		o.Known = func(string) bool { return false }
	}
	m.genAI = newGenAI(reg, o.Known, m.models.note)
	for _, outcome := range holdstate.Outcomes() {
		m.holds.WithLabelValues(outcome.String())
	}
	for _, err := range []error{hop.ErrForged, hop.ErrExpired, hop.ErrMismatch} {
		m.tokens.WithLabelValues(hop.Class(err))
	}
	for _, err := range []error{ticket.ErrForged, ticket.ErrExpired, ticket.ErrUsed, ticket.ErrMismatch} {
		m.tickets.WithLabelValues(ticket.Class(err))
	}
	return m
}

// HoldEnded counts the end of a hold. A request that was refused by a limit, which was not
// held, is counted too, but has no duration.
func (m *Metrics) HoldEnded(o holdstate.Outcome, held time.Duration) {
	m.holds.WithLabelValues(o.String()).Inc()
	if o != holdstate.OutcomeFull {
		m.held.Observe(held.Seconds())
	}
}

// HoldTimes returns how long requests were held, from the first time that occurred to the last;
// nil: none was.
func (m *Metrics) HoldTimes() []admin.HoldTime {
	var now dto.Metric
	if err := m.held.Write(&now); err != nil {
		return nil
	}
	var list []admin.HoldTime
	before, last := uint64(0), 0
	for _, b := range now.GetHistogram().GetBucket() {
		if n := b.GetCumulativeCount() - before; n > 0 || len(list) > 0 {
			list = append(list, admin.HoldTime{UpTo: b.GetUpperBound(), Requests: n})
			if n > 0 {
				last = len(list)
			}
		}
		before = b.GetCumulativeCount()
	}
	if over := now.GetHistogram().GetSampleCount() - before; over > 0 {
		return append(list, admin.HoldTime{Requests: over})
	}
	return list[:last:last]
}

// Rejected counts a request that got no reservation or no slot.
func (m *Metrics) Rejected(model string, err error) {
	m.models.note(model)
	m.rejections.WithLabelValues(refusal.Label(err), model).Inc()
}

// TokenRejected counts an invalid token of a redirected request.
func (m *Metrics) TokenRejected(err error) { m.tokens.WithLabelValues(hop.Class(err)).Inc() }

// Queued records how long a request waited for a slot.
func (m *Metrics) Queued(model string, d time.Duration) {
	m.models.note(model)
	m.queued.WithLabelValues(model).Observe(d.Seconds())
}

// Woke records how long the wake of a model took.
func (m *Metrics) Woke(model string, took time.Duration) {
	m.models.note(model)
	m.wakes.WithLabelValues(model).Observe(took.Seconds())
}

// WakeFailed counts a failed wake.
func (m *Metrics) WakeFailed(model string) {
	m.models.note(model)
	m.failures.add(model, 1)
}

// Serving creates the series of an agent's models that begin with its registration.
func (m *Metrics) Serving(agent *agentreg.AgentInfo) {
	m.routed.addAgent(agent)
	m.countLosses(agent, 0)
}

// Lost counts an agent that left routing although nobody asked for it.
func (m *Metrics) Lost(agent *agentreg.AgentInfo) { m.countLosses(agent, 1) }

func (m *Metrics) countLosses(agent *agentreg.AgentInfo, n uint64) {
	for _, model := range agent.Models {
		m.models.note(model)
		m.losses.add(model, n)
	}
}

// routedTo counts the first slot that a request got.
func (m *Metrics) routedTo(r *extproc.Request, g holdstate.Grant) {
	to := g.Replica()
	m.routed.count(route{to.Engine, to.Region, r.Model}, m.tenant(r.Caller.TenantID))
}

// ended counts a request that has ended.
func (m *Metrics) ended(r *extproc.Record) {
	if r.ErrorCode == extproc.CodeRecordLost {
		m.lost.Inc()
	}
	m.requests.WithLabelValues(r.Method, r.Route(), strconv.Itoa(r.Status)).Observe(r.Duration.Seconds())
	m.genAI.ended(r)
	if r.Usage.Known {
		m.models.note(r.Request.Model)
		m.usage.count(r.Request.Model, m.tenant(r.Request.Caller.TenantID), r.Usage)
	}
}
