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

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
)

// defaultTenant is who everybody is without a keys file.
const defaultTenant = access.DefaultTenant

// metrics are the series of the hold and of the routing.
type metrics struct {
	holds  *prometheus.CounterVec
	held   prometheus.Histogram
	routed *prometheus.CounterVec
	// requests has the status that a request really ended with.
	requests *prometheus.HistogramVec
	wakes    *prometheus.HistogramVec
	tenants  func() []string // who is known to send requests
	others   tenantNames
	lost     prometheus.Counter
	// rejections and queued are of requests that a replica served.
	rejections *prometheus.CounterVec
	queued     *prometheus.HistogramVec
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
		return "other"
	}
	if n.seen == nil {
		n.seen = map[string]struct{}{}
	}
	n.seen[tenant] = struct{}{}
	return tenant
}

func newMetrics(prefix string, reg prometheus.Registerer, tenants func() []string) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		tenants: tenants,
		holds: f.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "wake_holds_total",
			Help: "Requests that were held, or refused by a hold limit, by how they ended.",
		}, []string{"outcome"}),
		held: f.NewHistogram(prometheus.HistogramOpts{
			Name:    prefix + "wake_hold_seconds",
			Help:    "How long requests were held, whatever their outcome, in seconds.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1800, 3600},
		}),
		routed: f.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "routing_requests_routed_total",
			Help: "Requests that got a slot on an agent, each counted once.",
		}, []string{"tenant_id", "engine", "region", "model"}),
	}
	m.requests = f.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "http_server_request_duration_seconds",
		Help:    "How long requests took, by the status they ended with, in seconds.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600},
	}, []string{"method", "route", "status_code"})
	m.wakes = f.NewHistogramVec(prometheus.HistogramOpts{
		Name:    prefix + "wake_seconds",
		Help:    "How long wakes took, from the first request that waited to the first replica, in seconds.",
		Buckets: []float64{.25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1800, 3600},
	}, []string{"model"})
	m.rejections = f.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "admission_rejections_total",
		Help: "Requests for a model that is up that were turned away, by why.",
	}, []string{"reason", "model"})
	m.queued = f.NewHistogramVec(prometheus.HistogramOpts{
		Name:    prefix + "queue_wait_seconds",
		Help:    "How long requests waited in the capacity queue, those that got a slot at once left out, in seconds.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600},
	}, []string{"model"})
	m.lost = f.NewCounter(prometheus.CounterOpts{
		Name: prefix + "lost_records_total",
		Help: "Requests whose access-log record did not come, so that their status is not known.",
	})
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
		m.routed.WithLabelValues(tenant, a.Engine, a.Region, r.Model).Inc()
	}
}

// ended counts a request that has ended.
func (m *metrics) ended(r *extproc.Record) {
	if r.ErrorCode == extproc.CodeRecordLost {
		m.lost.Inc()
	}
	m.requests.WithLabelValues(r.Method, r.Route(), strconv.Itoa(r.Status)).Observe(r.Duration.Seconds())
}

// serving makes an agent's series, so that the first request is an increase.
func (m *metrics) serving(a *agentreg.AgentInfo) {
	for _, tenant := range m.tenants() {
		for _, model := range a.Models {
			m.routed.WithLabelValues(tenant, a.Engine, a.Region, model)
		}
	}
	for _, model := range a.Models {
		m.queued.WithLabelValues(model)
		for _, reason := range rejectionReasons {
			m.rejections.WithLabelValues(reason, model)
		}
	}
}
