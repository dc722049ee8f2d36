// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"slices"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/wake"
	"github.com/holdgate/holdgate/sitemap"
)

// hook is a webhook and the targets that it wakes.
type hook struct {
	wake.Hook

	targets []target.Target
	backend *backend.Backend // nil: a hook of the map
}

// hooks has the webhooks of this site.
type hooks struct {
	all     map[string]*hook    // by name; hooks of the map and of each backend have different names
	byModel map[string][]string // the names of the hooks of each model
}

// newHooks returns the hooks of the placements. Placements of a model with the same method
// and URL share a hook, so that a machine that serves several kinds is woken once. All models
// of a backend share one too.
func newHooks(p decision.Placements) *hooks {
	hs := &hooks{all: map[string]*hook{}, byModel: map[string][]string{}}
	for _, model := range p.Held() {
		for _, kind := range target.Kinds {
			t := target.Target{Model: model, Kind: kind}
			if w := p.MapWake(t); w != nil {
				hs.add(model+" "+w.Method+" "+w.URL, w, nil, t)
			}
		}
	}
	for _, b := range p.Backends.All() {
		for _, t := range b.Targets() {
			if b.Wake != nil && p.MapWake(t) == nil {
				hs.add(backendHook+b.Name, b.Wake, b, t)
			}
		}
	}
	return hs
}

// backendHook is the prefix of the names of backends' hooks.
const backendHook = "backend "

func (hs *hooks) add(name string, w *sitemap.Wake, b *backend.Backend, t target.Target) {
	h := hs.all[name]
	if h == nil {
		h = &hook{backend: b}
		h.URL, h.Method, h.Kind = w.URL, w.Method, t.Kind.String()
		hs.all[name] = h
	}
	h.Cooldown = max(h.Cooldown, cmp.Or(w.Cooldown, wake.DefaultCooldown))
	if h.Kind != t.Kind.String() {
		h.Kind = ""
	}
	h.targets = append(h.targets, t)
	if !slices.Contains(h.Models, t.Model) {
		h.Models = append(h.Models, t.Model)
		hs.byModel[t.Model] = append(hs.byModel[t.Model], name)
	}
}

// isDue reports whether a hook must be called: a target that it wakes should be up, and no
// backend that could serve the target is healthy.
func (n *notifiers) isDue(h *hook) bool {
	for _, t := range h.targets {
		switch {
		case h.backend != nil && !h.backend.Failing(), h.backend == nil && !n.backends.AllFailing(t):
		case n.machine.Wanted(t.Model) && !n.isUp(t.Model, h.kinds(t.Model)):
			return true
		case h.backend != nil && n.used(t.Model) && n.beforeAllThatServe(h.backend, t):
			return true
		}
	}
	return false
}

// kinds returns the kinds of a model that the hook wakes.
func (h *hook) kinds(model string) (kinds []target.Kind) {
	for _, t := range h.targets {
		if t.Model == model {
			kinds = append(kinds, t.Kind)
		}
	}
	return kinds
}

// beforeAllThatServe reports whether the model's policy prefers a backend to every replica
// that serves the target. Then the backend is woken even though the target is served.
func (n *notifiers) beforeAllThatServe(b *backend.Backend, t target.Target) bool {
	m := n.policies().Model(t.Model)
	if m == nil {
		return false
	}
	for i := range m.Steps {
		match := &m.Steps[i].Match
		if n.registry.CapacityFrom(t, matching{match}).Replicas > 0 {
			return false
		}
		if match.Fits(b.Engine, b.Region, b.Labels) {
			return n.registry.Serving(t) > 0
		}
	}
	return false
}

// matching is the match of a policy's step as a filter of replicas.
type matching struct{ match *policy.Match }

// Fits implements agentreg.Filter.
func (m matching) Fits(a *agentreg.AgentInfo) bool { return m.match.Fits(a.Engine, a.Region, a.Labels) }
