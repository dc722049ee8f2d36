// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// sample is one series of a scrape, of which there may be 100,000. It costs a third of
// prometheus.NewConstMetric: its labels may be shared, and are sorted already.
type sample struct {
	desc    *prometheus.Desc
	labels  []*dto.LabelPair // sorted by name
	value   float64
	counter bool // else a gauge
}

// Desc is part of prometheus.Metric.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Write is part of prometheus.Metric.
func (s *sample) Write(to *dto.Metric) error {
	to.Label = s.labels
	if s.counter {
		to.Counter = &dto.Counter{Value: &s.value}
	} else {
		to.Gauge = &dto.Gauge{Value: &s.value}
	}
	return nil
}

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }
