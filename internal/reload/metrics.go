// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics has gauges that show whether each file was valid when it was last read. All files
// share one Metrics.
type Metrics struct {
	good *prometheus.GaugeVec
	when *prometheus.GaugeVec
}

// NewMetrics registers the gauges.
func NewMetrics(prefix string, reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		good: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "config_last_reload_successful",
			Help: "1 if the file was valid when it was last read, 0 if an older version is in force.",
		}, []string{"file"}),
		when: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "config_last_reload_success_timestamp_seconds",
			Help: "When the file was last read and was valid, in seconds since 1970.",
		}, []string{"file"}),
	}
}

func (m *Metrics) succeeded(file string, now time.Time) {
	if m == nil {
		return
	}
	m.good.WithLabelValues(file).Set(1)
	m.when.WithLabelValues(file).Set(float64(now.UnixMilli()) / 1000)
}

func (m *Metrics) failed(file string) {
	if m != nil {
		m.good.WithLabelValues(file).Set(0)
	}
}
