// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Holdable is the models whose requests may be held.
type Holdable struct {
	MapLoaded bool // else only the models of backends are in the list
	Models    []string
}

// WakeTimes returns how long a wake of a model should take, 0 while that is not known, and for how
// long its current wake has been running, 0 if there is none.
type WakeTimes func(model string) (expected, running time.Duration)

// DemandOptions are what Demand exports.
type DemandOptions struct {
	Prefix   string
	HasMap   bool // the router needs a map
	Holdable func() Holdable
	Own      Needs // the demand of this router
	Site     Needs // that of all; nil: this router is alone
	Times    WakeTimes
}

// Demand exports the demand of each holdable model. Before the map is loaded there are no
// series for its models: a router that has just restarted must not report that no request
// waits.
type Demand struct {
	o                       DemandOptions
	loaded, pending, wanted *prometheus.Desc
	sitePending, siteWanted *prometheus.Desc
	expected, running       *prometheus.Desc
}

// Needs is the demand of a router, or of all routers of the site.
type Needs interface {
	// Demand returns how many distinct requests wait for the model.
	Demand(model string) int
	// Wanted reports whether the model should be up.
	Wanted(model string) bool
}

// NewDemand returns the collector.
func NewDemand(o DemandOptions) *Demand {
	prefix := o.Prefix
	return &Demand{
		o: o,
		loaded: prometheus.NewDesc(prefix+"map_loaded",
			"1 while the router has a sibling map. Without one only models of backends have a demand.", nil, nil),
		pending: prometheus.NewDesc(prefix+"pending_demand",
			"Distinct requests that wait for the model: held, or released without a slot.", []string{"model"}, nil),
		wanted: prometheus.NewDesc(prefix+"wake_wanted",
			"1 while the model should be up: requests wait for it or did so within the linger.", []string{"model"}, nil),
		sitePending: prometheus.NewDesc(prefix+"site_pending_demand",
			"Distinct requests that wait for the model on all routers of the site.", []string{"model"}, nil),
		siteWanted: prometheus.NewDesc(prefix+"site_wake_wanted",
			"1 while the model should be up for any router of the site.", []string{"model"}, nil),
		expected: prometheus.NewDesc(prefix+"wake_expected_seconds",
			"How long a wake should take, by the 90th percentile of the last 20 wakes, in seconds.", []string{"model"}, nil),
		running: prometheus.NewDesc(prefix+"wake_running_seconds",
			"For how long the model's current wake has been running, in seconds; 0 if there is none.", []string{"model"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (d *Demand) Describe(ch chan<- *prometheus.Desc) {
	if d.o.HasMap {
		ch <- d.loaded
	}
	ch <- d.pending
	ch <- d.wanted
	ch <- d.expected
	ch <- d.running
	if d.o.Site != nil {
		ch <- d.sitePending
		ch <- d.siteWanted
	}
}

// Collect implements prometheus.Collector.
func (d *Demand) Collect(ch chan<- prometheus.Metric) {
	now := d.o.Holdable()
	if d.o.HasMap {
		ch <- prometheus.MustNewConstMetric(d.loaded, prometheus.GaugeValue, flag(now.MapLoaded))
	}
	for _, model := range now.Models {
		labels := []*dto.LabelPair{label("model", model)}
		ch <- &sample{d.pending, labels, float64(d.o.Own.Demand(model)), false}
		ch <- &sample{d.wanted, labels, flag(d.o.Own.Wanted(model)), false}
		if d.o.Site != nil {
			ch <- &sample{d.sitePending, labels, float64(d.o.Site.Demand(model)), false}
			ch <- &sample{d.siteWanted, labels, flag(d.o.Site.Wanted(model)), false}
		}
		expected, running := d.o.Times(model)
		ch <- &sample{d.running, labels, running.Seconds(), false}
		if expected > 0 {
			ch <- &sample{d.expected, labels, expected.Seconds(), false}
		}
	}
}

// flag returns a boolean as the value of a gauge: 1 or 0.
func flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
