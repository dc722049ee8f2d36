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

// NewLoad makes the collector.
func NewLoad(prefix string, capacity *admission.Capacity, registry *agentreg.Registry, machine *holdstate.Machine) *Load {
	of := func(label, name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, []string{label}, nil)
	}
	return &Load{
		capacity: capacity, registry: registry, machine: machine,
		queue:        of("model", "queue_depth", "Requests that wait for a slot of a model that is up."),
		parked:       of("model", "admission_waiting", "Requests that wait for room in the admission gate."),
		requests:     of("model", "admission_requests", "Requests that the admission gate has let in and that have not ended."),
		requestLimit: of("model", "admission_requests_limit", "How many requests the admission gate lets in at once."),
		tokens:       of("model", "admission_tokens", "Estimated tokens of the requests that the admission gate has let in."),
		tokenLimit:   of("model", "admission_tokens_limit", "How many estimated tokens the admission gate lets in at once."),
		slots:        of("agent_id", "agent_slots", "Slots of a registered agent."),
		slotsUsed:    of("agent_id", "agent_slots_in_use", "Slots of a registered agent that this router's requests have."),
	}
}

// Describe is part of prometheus.Collector.
func (l *Load) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		l.queue, l.parked, l.requests, l.requestLimit, l.tokens, l.tokenLimit, l.slots, l.slotsUsed,
	} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
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
	for _, has := range l.capacity.Loads() {
		gauge(l.requests, has.Requests, has.Model)
		gauge(l.tokens, has.Tokens, has.Model)
		if has.RequestLimit > 0 {
			gauge(l.requestLimit, has.RequestLimit, has.Model)
		}
		if has.TokenLimit > 0 {
			gauge(l.tokenLimit, has.TokenLimit, has.Model)
		}
	}
	for _, a := range l.registry.Agents() {
		gauge(l.slots, a.Slots, a.ID)
		gauge(l.slotsUsed, a.InFlight, a.ID)
	}
}
