// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Holdable is the models whose requests may be held.
type Holdable struct {
	MapLoaded bool // else only the models of backends are in the list
	Models    []string
}

// Demand exports the demand of each holdable model. Before the map is loaded there are no
// series for its models: a router that has just restarted must not report that no request
// waits.
type Demand struct {
	holdable                func() Holdable
	own                     Needs
	site                    Needs // nil: this router is alone
	loaded, pending, wanted *prometheus.Desc
	sitePending, siteWanted *prometheus.Desc
}

// Needs is the demand of a router, or of all routers of the site.
type Needs interface {
	// Demand returns how many distinct requests wait for the model.
	Demand(model string) int
	// Wanted reports whether the model should be up.
	Wanted(model string) bool
}

// NewDemand returns the collector. own is the demand of this router, site that of all: it is nil if this router is alone.
func NewDemand(prefix string, holdable func() Holdable, own, site Needs) *Demand {
	return &Demand{
		holdable: holdable, own: own, site: site,
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
	}
}

// Describe implements prometheus.Collector.
func (d *Demand) Describe(ch chan<- *prometheus.Desc) {
	ch <- d.loaded
	ch <- d.pending
	ch <- d.wanted
	if d.site != nil {
		ch <- d.sitePending
		ch <- d.siteWanted
	}
}

// Collect implements prometheus.Collector.
func (d *Demand) Collect(ch chan<- prometheus.Metric) {
	now := d.holdable()
	ch <- prometheus.MustNewConstMetric(d.loaded, prometheus.GaugeValue, flag(now.MapLoaded))
	for _, model := range now.Models {
		labels := []*dto.LabelPair{label("model", model)}
		ch <- &sample{d.pending, labels, float64(d.own.Demand(model)), false}
		ch <- &sample{d.wanted, labels, flag(d.own.Wanted(model)), false}
		if d.site != nil {
			ch <- &sample{d.sitePending, labels, float64(d.site.Demand(model)), false}
			ch <- &sample{d.siteWanted, labels, flag(d.site.Wanted(model)), false}
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
