// SPDX-License-Identifier: Apache-2.0

package app

import (
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/site"
	"github.com/holdgate/holdgate/internal/wake"
)

// newSiteDemand creates what this router knows of the demand of the others, and of their wakes,
// unless it is alone.
func (a *App) newSiteDemand() {
	if a.shared == nil {
		return
	}
	a.demand = site.NewDemand(a.shared, site.DemandOptions{
		Machine: func() *holdstate.Machine { return a.machine },
		// Agents, backends and webhooks are not told: the other router does that itself.
		OnChange: func(model string) { a.notifiers.keda.Changed(model) },
	})
	a.activity = site.NewActivity(a.shared, a.uses)
	a.learned = site.NewLearned(a.shared, func() site.Times { return a.machine })
	a.fails = site.NewFails(a.shared, a.log, func(model, reason string, until time.Time) bool {
		ended := a.notifiers.wakeRefusedElsewhere(model, reason, until)
		if ended {
			a.events.Add(events.Event{Type: events.Failed, Model: model, Reason: reason})
		}
		return ended
	})
}

// shareDemand has the machine tell the other routers its demand.
func (a *App) shareDemand(o *holdstate.Options) {
	if a.demand != nil {
		o.OnLevel, o.OnLeft, o.PlaceOf = a.demand.Changed, a.demand.Left, a.demand.PlaceOf
	}
}

// woke is called with how long a wake took that this router measured.
func (a *App) woke(model string, took time.Duration) {
	a.metrics.Woke(model, took)
	if a.learned != nil {
		a.learned.Woke(model, took)
	}
}

// wakeHasFailed ends the waiters of a model whose wake failed, on all routers of the site.
func (a *App) wakeHasFailed(model, reason string) {
	a.metrics.WakeFailed(model)
	a.machine.Fail(model, reason)
	a.events.Add(events.Event{Type: events.Failed, Model: model, Reason: reason})
	if a.fails != nil {
		a.fails.Failed(model, reason, a.c.WakeCooldown)
	}
}

// uses returns the models that have requests of this router, or had one within the longest
// window of KEDA.
func (a *App) uses() map[string]site.Use {
	uses := map[string]site.Use{}
	a.notifiers.recent.Each(func(model string, ago time.Duration) {
		uses[model] = site.Use{Idle: ago}
	})
	for model, u := range uses {
		if u.InFlight = a.registry.InFlight(model); u.InFlight == 0 && u.Idle >= wake.MaxWindow {
			delete(uses, model)
			continue
		}
		uses[model] = u
	}
	return uses
}

// siteNeeds returns the needs of the site, nil if this router is alone.
func (a *App) siteNeeds() observe.Needs {
	if a.demand == nil {
		return nil
	}
	return a.demand
}
