// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdgate/holdgate/extproc/body"
)

// tokens counts the tokens that engines report, by model and tenant. Like routed it has at most
// maxRouted tenants and models together; further tenants share otherTenant.
type tokens struct {
	desc *prometheus.Desc

	mu sync.Mutex
	by map[tokenLabels]*tokenCounts
}

type tokenLabels struct{ model, tenant string }

type tokenCounts struct {
	input, output int64
	absent        time.Time // since when the tenant is unknown; zero while it is known
}

func newTokens(name string) *tokens {
	return &tokens{
		by: map[tokenLabels]*tokenCounts{},
		desc: prometheus.NewDesc(name,
			"Tokens of requests whose answers the router relayed, as the engines report them.", []string{"kind", "model", "tenant_id"}, nil),
	}
}

// count adds the tokens of a request.
func (t *tokens) count(model, tenant string, u body.Usage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := tokenLabels{model, tenant}
	if t.by[at] == nil && len(t.by) >= maxRouted {
		at.tenant = otherTenant
	}
	if t.by[at] == nil {
		// Without the copies, the key could keep the string of a whole request in memory.
		at = tokenLabels{strings.Clone(at.model), strings.Clone(at.tenant)}
		t.by[at] = &tokenCounts{}
	}
	t.by[at].input += u.Input
	t.by[at].output += u.Output
}

// remove removes the series of a model.
func (t *tokens) remove(model string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.by, func(at tokenLabels, _ *tokenCounts) bool { return at.model == model })
}

// forget removes the tenants that have been unknown since before.
func (t *tokens) forget(now, before time.Time, hasTenant func(string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.by, func(at tokenLabels, n *tokenCounts) bool {
		return expired(&n.absent, hasTenant(at.tenant), now, before)
	})
}

// Describe implements prometheus.Collector.
func (t *tokens) Describe(ch chan<- *prometheus.Desc) { ch <- t.desc }

// Collect implements prometheus.Collector.
func (t *tokens) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	now := make([]*sample, 0, 2*len(t.by))
	for at, n := range t.by {
		model, tenant := label("model", at.model), label("tenant_id", at.tenant)
		now = append(now,
			&sample{t.desc, []*dto.LabelPair{label("kind", "input"), model, tenant}, float64(n.input), true},
			&sample{t.desc, []*dto.LabelPair{label("kind", "output"), model, tenant}, float64(n.output), true})
	}
	t.mu.Unlock() // no request waits for a slow scraper
	for _, s := range now {
		ch <- s
	}
}
