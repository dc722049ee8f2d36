// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admission"
)

// Load exports how many requests replicas have, and how many wait for them.
type Load struct {
	capacity *admission.Capacity
	registry *agentreg.Registry
	machine  *holdstate.Machine

	queue, parked                        *prometheus.Desc
	requests, requestLimit               *prometheus.Desc
	tokens, tokenLimit, slots, slotsUsed *prometheus.Desc
}

// NewLoad returns the collector.
func NewLoad(prefix string, capacity *admission.Capacity, registry *agentreg.Registry, machine *holdstate.Machine) *Load {
	desc := func(label, name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, []string{label}, nil)
	}
	return &Load{
		capacity: capacity, registry: registry, machine: machine,
		queue:        desc("model", "queue_depth", "Requests that wait for a slot of a model that is up."),
		parked:       desc("model", "admission_waiting", "Requests that wait for a reservation of the admission gate."),
		requests:     desc("model", "admission_requests", "Requests that the admission gate has admitted and that have not ended."),
		requestLimit: desc("model", "admission_requests_limit", "How many requests the admission gate admits at once."),
		tokens:       desc("model", "admission_tokens", "Estimated tokens of the requests that the admission gate has admitted."),
		tokenLimit:   desc("model", "admission_tokens_limit", "How many estimated tokens the admission gate admits at once."),
		slots:        desc("agent_id", "agent_slots", "Slots of a registered agent."),
		slotsUsed:    desc("agent_id", "agent_slots_in_use", "Slots of a registered agent that this router's requests have."),
	}
}

// Describe implements prometheus.Collector.
func (l *Load) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		l.queue, l.parked, l.requests, l.requestLimit, l.tokens, l.tokenLimit, l.slots, l.slotsUsed,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l *Load) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	for _, state := range l.registry.Models() {
		parked, queued := l.machine.Depths(state.Model)
		labels := []*dto.LabelPair{label("model", state.Model)}
		ch <- &sample{l.parked, labels, float64(parked), false}
		ch <- &sample{l.queue, labels, float64(queued), false}
	}
	for _, load := range l.capacity.Loads() {
		gauge(l.requests, load.Requests, load.Model)
		gauge(l.tokens, load.Tokens, load.Model)
		if load.RequestLimit > 0 {
			gauge(l.requestLimit, load.RequestLimit, load.Model)
		}
		if load.TokenLimit > 0 {
			gauge(l.tokenLimit, load.TokenLimit, load.Model)
		}
	}
	for _, a := range l.registry.Agents() {
		gauge(l.slots, a.Slots, a.ID)
		gauge(l.slotsUsed, a.InFlight, a.ID)
	}
}
