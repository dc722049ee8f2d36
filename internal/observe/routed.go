// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdgate/holdgate/agentreg"
)

const (
	// maxZeroTenants is how many tenants have a series, at 0, before their first request.
	maxZeroTenants = 1000
	// maxZeros limits the number of these series over all routes.
	maxZeros = 100_000
	// maxRouted limits the number of counters; further tenants share otherTenant.
	maxRouted = 100_000
)

// route has the labels of the engine that a request was routed to.
type route struct{ engine, region, model string }

// routed counts the requests that got a slot. A tenant without requests has a series at 0
// but no counter: Collect makes these series, so that the cost of a registration does not
// depend on the number of tenants.
type routed struct {
	desc    *prometheus.Desc
	tenants func() []string // the known tenants, sorted

	mu     sync.RWMutex
	routes map[route]*counters
	size   int // number of counters of all routes
}

// counters are the counters of one route.
type counters struct {
	byTenant map[string]*counter
	absent   time.Time // since when no agent has the route; zero while one has
}

type counter struct {
	n      atomic.Uint64
	absent time.Time // since when the tenant is unknown; zero while it is known
}

func newRouted(prefix string, tenants func() []string) *routed {
	return &routed{
		tenants: tenants, routes: map[route]*counters{},
		desc: prometheus.NewDesc(prefix+"routing_requests_routed_total",
			"Requests that got a slot on an agent, each counted once.", []string{"engine", "model", "region", "tenant_id"}, nil),
	}
}

// addAgent creates the routes of an agent.
func (r *routed) addAgent(a *agentreg.AgentInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, model := range a.Models {
		r.counters(route{a.Engine, a.Region, model}).absent = time.Time{}
	}
}

func (r *routed) counters(to route) *counters {
	c := r.routes[to]
	if c == nil {
		c = &counters{byTenant: map[string]*counter{}}
		r.routes[to] = c
	}
	return c
}

// count adds a request.
func (r *routed) count(to route, tenant string) {
	if !r.countKnown(to, tenant) {
		r.countFirst(to, tenant)
	}
}

// countKnown adds a request, unless the tenant has no counter for the route yet. It reports
// whether it did.
func (r *routed) countKnown(to route, tenant string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c := r.routes[to]
	if c == nil || c.byTenant[tenant] == nil {
		return false
	}
	c.byTenant[tenant].n.Add(1)
	return true
}

func (r *routed) countFirst(to route, tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counters(to)
	if c.byTenant[tenant] == nil && r.size >= maxRouted {
		tenant = otherTenant
	}
	if c.byTenant[tenant] == nil {
		// Without the copy, the key could keep the string of a whole request in memory.
		c.byTenant[strings.Clone(tenant)] = &counter{}
		r.size++
	}
	c.byTenant[tenant].n.Add(1)
}

// zeros returns the tenants that have a series at 0 for each of the routes.
func zeros(tenants []string, routes int) []string {
	n := min(len(tenants), maxZeroTenants, max(maxZeros/max(routes, 1), 1))
	return tenants[:n]
}

// forget removes the routes and the tenants that have been absent since before.
func (r *routed) forget(now, before time.Time, hasRoute func(route) bool, hasTenant func(string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for to, c := range r.routes {
		if expired(&c.absent, hasRoute(to), now, before) {
			r.size -= len(c.byTenant)
			delete(r.routes, to)
			continue
		}
		for tenant, count := range c.byTenant {
			if expired(&count.absent, hasTenant(tenant), now, before) {
				r.size--
				delete(c.byTenant, tenant)
			}
		}
	}
}

// Describe implements prometheus.Collector.
func (r *routed) Describe(ch chan<- *prometheus.Desc) { ch <- r.desc }

// Collect implements prometheus.Collector.
func (r *routed) Collect(ch chan<- prometheus.Metric) {
	now := r.snapshot()
	tenants := zeros(r.tenants(), len(now))
	pairs := make([]*dto.LabelPair, len(tenants))
	for i, tenant := range tenants {
		pairs[i] = label("tenant_id", tenant)
	}
	for to, sent := range now {
		engine, model, region := label("engine", to.engine), label("model", to.model), label("region", to.region)
		series := func(tenant *dto.LabelPair, n uint64) {
			ch <- &sample{r.desc, []*dto.LabelPair{engine, model, region, tenant}, float64(n), true}
		}
		for i, tenant := range tenants {
			series(pairs[i], sent[tenant])
		}
		for tenant, n := range sent {
			if _, listed := slices.BinarySearch(tenants, tenant); !listed {
				series(label("tenant_id", tenant), n)
			}
		}
	}
}

// snapshot copies the counts, so that no request waits for a slow scraper.
func (r *routed) snapshot() map[route]map[string]uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make(map[route]map[string]uint64, len(r.routes))
	for to, c := range r.routes {
		sent := make(map[string]uint64, len(c.byTenant))
		for tenant, count := range c.byTenant {
			sent[tenant] = count.n.Load()
		}
		all[to] = sent
	}
	return all
}
