// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// callBuckets are in seconds, around CallTimeout.
var callBuckets = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1}

type metrics struct {
	up      prometheus.Gauge
	routers prometheus.Gauge
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
}

func newMetrics(prefix string, r prometheus.Registerer) metrics {
	f := promauto.With(r)
	return metrics{
		up: f.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "shared_up", Help: "Whether the server with the state that routers share answers. While it does not, each router decides alone.",
		}),
		routers: f.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "shared_routers", Help: "Routers of this site that share their state, with this one.",
		}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "shared_call_seconds", Help: "How long calls to the server with the shared state took, by call.", Buckets: callBuckets,
		}, []string{"call"}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "shared_errors_total", Help: "Calls to the server with the shared state that failed or took too long, by call.",
		}, []string{"call"}),
	}
}
