// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/wake"
)

// Keeper removes the series of names that are gone: of models that are not known, of engines
// and regions that no agent of the model has, and of tenants that are not listed.
type Keeper struct {
	Metrics *Metrics
	Keep    time.Duration // how long a name must be gone before its series are removed
	// KnownModel reports whether a model is in the map, the registry, the backends or
	// the policy file.
	KnownModel func(model string) bool
	Agents     func() []agentreg.AgentStatus
	Recent     *wake.Recent
}

// Run removes series until ctx ends.
func (k Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(max(k.Keep/10, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			k.forget(now)
		}
	}
}

func (k Keeper) forget(now time.Time) {
	before := now.Add(-k.Keep)
	m := k.Metrics
	m.routed.forget(now, before, k.hasRoute(), m.hasTenant())
	m.usage.forget(now, before, m.hasTenant())
	if !m.o.Identities {
		m.tenants.clear()
	}
	m.models.forget(now, before, k.KnownModel, m.remove)
	k.Recent.Forget(k.Keep, k.KnownModel)
}

// hasRoute returns a function that reports whether a route exists: an agent has it, or the
// model is known and has no agents.
func (k Keeper) hasRoute() func(route) bool {
	routes := map[string][]route{}
	for _, a := range k.Agents() {
		for _, model := range a.Models {
			routes[model] = append(routes[model], route{a.Engine, a.Region, model})
		}
	}
	return func(r route) bool {
		if existing := routes[r.model]; len(existing) > 0 {
			return slices.Contains(existing, r)
		}
		return k.KnownModel(r.model)
	}
}

// expired updates *absent, the time since when a name is absent (zero while it is there), and
// reports whether it has been absent since before or longer.
func expired(absent *time.Time, there bool, now, before time.Time) bool {
	switch {
	case there:
		*absent = time.Time{}
	case absent.IsZero():
		*absent = now
	}
	return !there && !absent.After(before)
}

// models is the set of models that have series, each with the time since when it is unknown;
// zero while it is known.
type models struct {
	mu     sync.Mutex
	absent map[string]*time.Time
}

// note must be called before a series of the model is created.
func (l *models) note(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if absent := l.absent[model]; absent != nil {
		*absent = time.Time{}
		return
	}
	if l.absent == nil {
		l.absent = map[string]*time.Time{}
	}
	l.absent[model] = &time.Time{}
}

// forget calls remove for the models that have been unknown since before.
func (l *models) forget(now, before time.Time, known func(model string) bool, remove func(model string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for model, absent := range l.absent {
		if expired(absent, known(model), now, before) {
			delete(l.absent, model)
			remove(model)
		}
	}
}

// remove removes the series of a model.
func (m *Metrics) remove(model string) {
	m.queued.DeleteLabelValues(model)
	m.wakes.DeleteLabelValues(model)
	m.failures.remove(model)
	m.usage.remove(model)
	m.genAI.remove(model)
	m.losses.remove(model)
	for _, reason := range refusal.Labels() {
		m.rejections.DeleteLabelValues(reason, model)
	}
}
