// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/refusal"
)

// defaultTenant is who everybody is without a keys file.
const defaultTenant = access.DefaultTenant

// metrics are the series of the hold and of the routing.
type metrics struct {
	holds  *prometheus.CounterVec
	held   prometheus.Histogram
	routed *routed
	// requests has the status that a request really ended with.
	requests *prometheus.HistogramVec
	wakes    *prometheus.HistogramVec
	tenants  func() []string // who is known to send requests
	others   tenantNames
	lost     prometheus.Counter
	// rejections and queued are of requests that a replica served.
	rejections *prometheus.CounterVec
	queued     *prometheus.HistogramVec
	observed   observed // models with a series of wakes, rejections or queued
}

// tenantNames are the tenants of identities, which nobody knows before they come. The
// first ones have a label of their own.
type tenantNames struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

const maxTenantNames = 1000

func (n *tenantNames) label(tenant string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, again := n.seen[tenant]; again {
		return tenant
	}
	if len(n.seen) == maxTenantNames {
		return otherTenant
	}
	if n.seen == nil {
		n.seen = map[string]struct{}{}
	}
	n.seen[tenant] = struct{}{}
	return tenant
}

// forget is for a router without identities: who is not in the keys file is gone.
func (n *tenantNames) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.seen)
}

// histogram has native buckets beside the classic ones, for scrapers that ask for them.
func histogram(name, help string, buckets ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}
}

func newMetrics(prefix string, reg prometheus.Registerer, tenants func() []string) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		tenants: tenants,
		holds: f.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "wake_holds_total",
			Help: "Requests that were held, or refused by a hold limit, by how they ended.",
		}, []string{"outcome"}),
		held: f.NewHistogram(histogram(prefix+"wake_hold_seconds",
			"How long requests were held, whatever their outcome, in seconds.",
			.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1800, 3600)),
		routed: newRouted(prefix, tenants),
		requests: f.NewHistogramVec(histogram("http_server_request_duration_seconds",
			"How long requests took, by the status they ended with, in seconds.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
			[]string{"method", "route", "status_code"}),
		wakes: f.NewHistogramVec(histogram(prefix+"wake_seconds",
			"How long wakes took, from the first request that waited to the first replica, in seconds.",
			.25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1800, 3600),
			[]string{"model"}),
		rejections: f.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "admission_rejections_total",
			Help: "Requests for a model that is up that were turned away, by why.",
		}, []string{"reason", "model"}),
		queued: f.NewHistogramVec(histogram(prefix+"queue_wait_seconds",
			"How long requests waited in the capacity queue, those that got a slot at once left out, in seconds.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),
			[]string{"model"}),
		lost: f.NewCounter(prometheus.CounterOpts{
			Name: prefix + "lost_records_total",
			Help: "Requests whose access-log record did not come, so that their status is not known.",
		}),
	}
	reg.MustRegister(m.routed)
	for _, o := range holdstate.Outcomes() {
		m.holds.WithLabelValues(o.String())
	}
	return m
}

// outcome counts the end of a hold. A request that a limit refused was not held.
func (m *metrics) outcome(o holdstate.Outcome, held time.Duration) {
	m.holds.WithLabelValues(o.String()).Inc()
	if o != holdstate.OutcomeFull {
		m.held.Observe(held.Seconds())
	}
}

// routedTo counts a request's first slot.
func (m *metrics) routedTo(r *extproc.Request, g holdstate.Grant) {
	if slot, ok := g.(*admission.Grant); ok {
		a := slot.Agent()
		tenant := cmp.Or(r.Caller.TenantID, defaultTenant)
		if _, known := slices.BinarySearch(m.tenants(), tenant); !known {
			tenant = m.others.label(tenant)
		}
		m.routed.count(route{a.Engine, a.Region, r.Model}, tenant)
	}
}

// ended counts a request that has ended.
func (m *metrics) ended(r *extproc.Record) {
	if r.ErrorCode == extproc.CodeRecordLost {
		m.lost.Inc()
	}
	m.requests.WithLabelValues(r.Method, r.Route(), strconv.Itoa(r.Status)).Observe(r.Duration.Seconds())
}

// waited counts the wait of a request for a slot.
func (m *metrics) waited(model string, d time.Duration) {
	m.observed.note(model)
	m.queued.WithLabelValues(model).Observe(d.Seconds())
}

// woke counts the wake of a model.
func (m *metrics) woke(model string, took time.Duration) {
	m.observed.note(model)
	m.wakes.WithLabelValues(model).Observe(took.Seconds())
}

// forget removes the series of a model that is gone.
func (m *metrics) forget(model string) {
	m.queued.DeleteLabelValues(model)
	m.wakes.DeleteLabelValues(model)
	for _, reason := range refusal.Labels() {
		m.rejections.DeleteLabelValues(reason, model)
	}
}
