// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"slices"
	"sync"
	"time"
)

// keeper removes the series of names that are gone: of models that are in no map, no
// registry and no policy, of engines and regions that no agent of a model has, and of
// tenants that are not in the keys file.
type keeper struct {
	app  *App
	keep time.Duration
}

// run looks again and again until ctx ends.
func (k keeper) run(ctx context.Context) {
	every(ctx, max(k.keep/10, time.Second), k.look)
}

func (k keeper) look(now time.Time) {
	before := now.Add(-k.keep)
	m := k.app.series
	m.routed.forget(now, before, k.routes(), k.tenant())
	if k.app.c.IdentityMetadata == "" {
		m.others.forget()
	}
	m.observed.forget(now, before, k.app.decider.known, m.forget)
	k.app.notifiers.recent.Forget(k.keep, k.app.decider.known)
}

// routes tells which routes are there. Those of a model that sleeps without an agent stay
// as long as the model does.
func (k keeper) routes() func(route) bool {
	there := map[string][]route{}
	for _, a := range k.app.registry.Agents() {
		for _, model := range a.Models {
			there[model] = append(there[model], route{a.Engine, a.Region, model})
		}
	}
	return func(r route) bool {
		if routes := there[r.model]; len(routes) > 0 {
			return slices.Contains(routes, r)
		}
		return k.app.decider.known(r.model)
	}
}

// tenant tells who may send requests. Tenants of identities are in no list: those that
// have a name of their own keep it.
func (k keeper) tenant() func(string) bool {
	tenants := k.app.tenants()
	return func(tenant string) bool {
		_, known := slices.BinarySearch(tenants, tenant)
		return known || tenant == otherTenant || k.app.c.IdentityMetadata != ""
	}
}

// observed are the models that have series of their own, each with the time since when
// nothing knows it.
type observed struct {
	mu   sync.Mutex
	gone map[string]*time.Time
}

// note must be called before a series of the model is made.
func (o *observed) note(model string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone := o.gone[model]; gone != nil {
		*gone = time.Time{}
		return
	}
	if o.gone == nil {
		o.gone = map[string]*time.Time{}
	}
	o.gone[model] = &time.Time{}
}

// forget gives up the models that known has not known since the time before.
func (o *observed) forget(now, before time.Time, known func(string) bool, forget func(string)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for model, gone := range o.gone {
		if over(gone, known(model), now, before) {
			delete(o.gone, model)
			forget(model)
		}
	}
}
