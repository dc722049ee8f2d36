// SPDX-License-Identifier: Apache-2.0

package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/sitemap"
)

// demand exports what each holdable model is asked for. Without a map it exports
// nothing, so that a restarted router does not claim that nobody waits.
type demand struct {
	maps            *sitemap.Store
	machine         *holdstate.Machine
	pending, wanted *prometheus.Desc
}

func newDemand(prefix string, maps *sitemap.Store, machine *holdstate.Machine) *demand {
	return &demand{
		maps: maps, machine: machine,
		pending: prometheus.NewDesc(prefix+"pending_demand",
			"Distinct requests that wait for the model: held, or released without a slot.", []string{"model"}, nil),
		wanted: prometheus.NewDesc(prefix+"wake_wanted",
			"1 while the model should be up: somebody waits for it or did so within the linger.", []string{"model"}, nil),
	}
}

// Describe is part of prometheus.Collector.
func (d *demand) Describe(ch chan<- *prometheus.Desc) {
	ch <- d.pending
	ch <- d.wanted
}

// Collect is part of prometheus.Collector.
func (d *demand) Collect(ch chan<- prometheus.Metric) {
	m := d.maps.Current()
	if m == nil {
		return
	}
	for _, model := range m.Holdable() {
		wanted := 0.0
		if d.machine.Wanted(model) {
			wanted = 1
		}
		ch <- prometheus.MustNewConstMetric(d.pending, prometheus.GaugeValue, float64(d.machine.Demand(model)), model)
		ch <- prometheus.MustNewConstMetric(d.wanted, prometheus.GaugeValue, wanted, model)
	}
}
