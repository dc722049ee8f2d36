// SPDX-License-Identifier: Apache-2.0

package app

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdgate/holdgate/holdstate"
)

// demand exports what each holdable model is asked for. Without a map it says nothing
// of the map's models, so that a restarted router does not claim that nobody waits.
type demand struct {
	placements              func() placements
	machine                 *holdstate.Machine
	loaded, pending, wanted *prometheus.Desc
}

func newDemand(prefix string, now func() placements, machine *holdstate.Machine) *demand {
	return &demand{
		placements: now, machine: machine,
		loaded: prometheus.NewDesc(prefix+"map_loaded",
			"1 while the router has a sibling map. Without one only models of backends have a demand.", nil, nil),
		pending: prometheus.NewDesc(prefix+"pending_demand",
			"Distinct requests that wait for the model: held, or released without a slot.", []string{"model"}, nil),
		wanted: prometheus.NewDesc(prefix+"wake_wanted",
			"1 while the model should be up: somebody waits for it or did so within the linger.", []string{"model"}, nil),
	}
}

// Describe is part of prometheus.Collector.
func (d *demand) Describe(ch chan<- *prometheus.Desc) {
	ch <- d.loaded
	ch <- d.pending
	ch <- d.wanted
}

// Collect is part of prometheus.Collector.
func (d *demand) Collect(ch chan<- prometheus.Metric) {
	p := d.placements()
	ch <- prometheus.MustNewConstMetric(d.loaded, prometheus.GaugeValue, flag(p.m != nil))
	for _, model := range p.held() {
		labels := []*dto.LabelPair{label("model", model)}
		ch <- &sample{d.pending, labels, float64(d.machine.Demand(model)), false}
		ch <- &sample{d.wanted, labels, flag(d.machine.Wanted(model)), false}
	}
}

func flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
