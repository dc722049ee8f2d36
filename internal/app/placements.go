// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"slices"

	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// placements are where models are served from this site: what the sibling map says,
// and the backends. What the map says of a target wins; what it leaves out is the
// backend's. A backend may be asleep, so its targets may be held in any case.
type placements struct {
	m        *sitemap.Map // nil: there is none
	backends *backend.Set
}

// placements are those of now.
func (a *App) placements() placements { return placements{a.maps.Current(), a.backends} }

// placements are those of now.
func (d *decider) placements() placements { return placements{d.maps.Current(), d.backends} }

// here is the placement of a target at this site.
func (p placements) here(t target.Target) (sitemap.Placement, bool) {
	own, mine := p.backends.Here(t)
	if p.m == nil {
		return own, mine
	}
	placed, here := p.m.Here(t)
	if !here {
		return own, mine
	}
	if mine {
		placed.ScaleFromZero = true
		placed.HoldBudget = cmp.Or(placed.HoldBudget, own.HoldBudget)
	}
	return placed, true
}

// holdable says whether requests for a target may be held here.
func (p placements) holdable(t target.Target) bool {
	placed, here := p.here(t)
	return here && placed.ScaleFromZero
}

// holds says whether requests for a model may be held here, for any kind.
func (p placements) holds(model string) bool {
	return slices.ContainsFunc(target.Kinds[:], func(k target.Kind) bool {
		return p.holdable(target.Target{Model: model, Kind: k})
	})
}

// holdsOthers says whether requests for other models than this one may be held here.
func (p placements) holdsOthers(model string) bool {
	return slices.ContainsFunc(p.held(), func(other string) bool { return other != model })
}

// placed says whether a model is served from here, for any kind.
func (p placements) placed(model string) bool {
	return slices.ContainsFunc(target.Kinds[:], func(k target.Kind) bool {
		_, here := p.here(target.Target{Model: model, Kind: k})
		return here
	})
}

// held lists the models that may be held here, sorted.
func (p placements) held() []string {
	models := p.backends.Models()
	if p.m != nil {
		models = append(models, p.m.Holdable()...)
	}
	return sortedNames(models)
}

// models lists the models that are placed anywhere, sorted.
func (p placements) models() []string {
	models := p.backends.Models()
	if p.m != nil {
		models = append(models, p.m.Models()...)
	}
	return sortedNames(models)
}

// has says whether a model is placed anywhere.
func (p placements) has(model string) bool {
	return p.m != nil && p.m.Has(model) || p.backends.Has(model)
}

// mapWake is the webhook that the map has for a target, nil without one.
func (p placements) mapWake(t target.Target) *sitemap.Wake {
	if p.m == nil {
		return nil
	}
	placed, here := p.m.Here(t)
	if _, own := p.backends.Here(t); !here || !placed.ScaleFromZero && !own {
		return nil
	}
	return placed.Wake
}

// sortedNames gives the names in order, each once.
func sortedNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
