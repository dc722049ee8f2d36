// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"slices"

	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// Placements combines the sibling map and the backends of this site. What the map says about
// a target overrides what its backend says. Targets of a backend may always be held, because
// a backend may be asleep.
type Placements struct {
	Map      *sitemap.Map // nil: there is none
	Backends *backend.Set
}

// placements returns the current placements.
func (d *Decider) placements() Placements { return Placements{d.o.Maps.Current(), d.o.Backends} }

// Here returns the placement of a target at this site.
func (p Placements) Here(t target.Target) (sitemap.Placement, bool) {
	own, mine := p.Backends.Here(t)
	if p.Map == nil {
		return own, mine
	}
	placed, here := p.Map.Here(t)
	if !here {
		return own, mine
	}
	if mine {
		placed.ScaleFromZero = true
		placed.HoldBudget = cmp.Or(placed.HoldBudget, own.HoldBudget)
	}
	return placed, true
}

// Holdable reports whether requests for a target may be held here.
func (p Placements) Holdable(t target.Target) bool {
	placed, here := p.Here(t)
	return here && placed.ScaleFromZero
}

// Holds reports whether requests for a model may be held here, for any kind.
func (p Placements) Holds(model string) bool {
	return slices.ContainsFunc(target.Kinds[:], func(k target.Kind) bool {
		return p.Holdable(target.Target{Model: model, Kind: k})
	})
}

// HoldsOthers reports whether requests for models other than this one may be held here.
func (p Placements) HoldsOthers(model string) bool {
	return slices.ContainsFunc(p.Held(), func(other string) bool { return other != model })
}

// placed reports whether a model is served from here, for any kind.
func (p Placements) placed(model string) bool {
	return slices.ContainsFunc(target.Kinds[:], func(k target.Kind) bool {
		_, here := p.Here(target.Target{Model: model, Kind: k})
		return here
	})
}

// Held lists the models that may be held here, sorted.
func (p Placements) Held() []string {
	models := p.Backends.Models()
	if p.Map != nil {
		models = append(models, p.Map.Holdable()...)
	}
	return sortedNames(models)
}

// Models lists the models that are placed anywhere, sorted.
func (p Placements) Models() []string {
	models := p.Backends.Models()
	if p.Map != nil {
		models = append(models, p.Map.Models()...)
	}
	return sortedNames(models)
}

// has reports whether a model is placed anywhere.
func (p Placements) has(model string) bool {
	return p.Map != nil && p.Map.Has(model) || p.Backends.Has(model)
}

// MapWake returns the webhook in the map that wakes a target, nil if there is none or the
// target may not be held.
func (p Placements) MapWake(t target.Target) *sitemap.Wake {
	if p.Map == nil {
		return nil
	}
	placed, here := p.Map.Here(t)
	if _, own := p.Backends.Here(t); !here || !placed.ScaleFromZero && !own {
		return nil
	}
	return placed.Wake
}

// sortedNames returns the names in order, each once.
func sortedNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
