// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"

	"github.com/holdgate/holdgate/internal/wake"
	"github.com/holdgate/holdgate/sitemap"
)

// hook is a webhook and the kinds of its model that it wakes.
type hook struct {
	wake.Hook
	kinds []sitemap.Kind
}

// hooksOf are the webhooks that a map names for a model at this site, each by a
// name of its own. Placements with the same call share one, so that a machine that
// serves several kinds is asked for once.
func hooksOf(m *sitemap.Map, model string) map[string]hook {
	hooks := map[string]hook{}
	for _, kind := range sitemap.Kinds {
		p, ok := holdable(m, sitemap.Target{Model: model, Kind: kind})
		if !ok || p.Wake == nil {
			continue
		}
		cooldown := cmp.Or(p.Wake.Cooldown, wake.DefaultCooldown)
		name := model + " " + p.Wake.Method + " " + p.Wake.URL
		h, shared := hooks[name]
		if !shared {
			h.Hook = wake.Hook{Model: model, Kind: kind.String(), URL: p.Wake.URL, Method: p.Wake.Method, Cooldown: cooldown}
		} else {
			h.Kind, h.Cooldown = "", max(h.Cooldown, cooldown)
		}
		h.kinds = append(h.kinds, kind)
		hooks[name] = h
	}
	return hooks
}

// mapped puts the webhooks of a map in force. The wishes of its models are looked
// at again: a hook may be new to them.
func (a *App) mapped(m *sitemap.Map) {
	all := map[string]wake.Hook{}
	for _, model := range m.Holdable() {
		for name, h := range hooksOf(m, model) {
			all[name] = h.Hook
			a.levels.changed(model)
		}
	}
	a.outside.hooks.Replace(all)
}
