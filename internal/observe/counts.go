// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"maps"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// counts is a counter with the label model. The models that it is told of, and those of zeros, have
// a series before the first event, so that the first one is an increase.
type counts struct {
	desc  *prometheus.Desc
	zeros func() []string

	mu sync.Mutex
	n  map[string]uint64
}

// newCounts returns the collector; without zeros, which is nil then, no model has a series before.
func newCounts(name, help string, zeros func() []string) *counts {
	if zeros == nil {
		zeros = func() []string { return nil }
	}
	return &counts{desc: prometheus.NewDesc(name, help, []string{"model"}, nil), zeros: zeros, n: map[string]uint64{}}
}

// add counts n events of a model.
func (c *counts) add(model string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.n[model]; !known {
		model = strings.Clone(model) // it may be a part of a request's body
	}
	c.n[model] += n
}

// remove removes the series of a model.
func (c *counts) remove(model string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.n, model)
}

// Describe implements prometheus.Collector.
func (c *counts) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	for model, n := range c.snapshot() {
		ch <- &sample{c.desc, []*dto.LabelPair{label("model", model)}, float64(n), true}
	}
}

// snapshot returns the value of each series.
func (c *counts) snapshot() map[string]uint64 {
	zeros := c.zeros()
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]uint64, len(c.n)+len(zeros))
	for _, model := range zeros {
		all[model] = 0
	}
	maps.Copy(all, c.n)
	return all
}
