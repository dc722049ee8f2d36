// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"slices"

	"github.com/holdgate/holdgate/internal/wake"
	"github.com/holdgate/holdgate/sitemap"
)

// hook is a webhook and the kinds of its model that it wakes.
type hook struct {
	wake.Hook
	kinds []sitemap.Kind
}

// hooksOf are the webhooks of a model at this site, each by a name of its own. Placements with the same call share one, so that a machine that
// serves several kinds is asked for once.
func hooksOf(p placements, model string) map[string]hook {
	hooks := map[string]hook{}
	for _, kind := range sitemap.Kinds {
		for _, w := range p.wakes(sitemap.Target{Model: model, Kind: kind}) {
			cooldown := cmp.Or(w.Cooldown, wake.DefaultCooldown)
			name := model + " " + w.Method + " " + w.URL
			h, shared := hooks[name]
			switch {
			case !shared:
				h.Hook = wake.Hook{Model: model, Kind: kind.String(), URL: w.URL, Method: w.Method, Cooldown: cooldown}
			case slices.Contains(h.kinds, kind): // of another backend
				continue
			default:
				h.Kind, h.Cooldown = "", max(h.Cooldown, cooldown)
			}
			h.kinds = append(h.kinds, kind)
			hooks[name] = h
		}
	}
	return hooks
}

// placed puts the webhooks of the placements in force. The wishes of their models
// are looked at again: a hook may be new to them.
func (a *App) placed() {
	a.placing.Lock() // the last to come must have seen everything
	defer a.placing.Unlock()
	p := a.placements()
	all := map[string]wake.Hook{}
	for _, model := range p.held() {
		for name, h := range hooksOf(p, model) {
			all[name] = h.Hook
			a.levels.changed(model)
		}
	}
	a.outside.hooks.Replace(all)
}
