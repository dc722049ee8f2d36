// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/site"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/wake"
)

// notifiers pass on the needs of models to everything that can wake a model:
//
//  1. The wake signal: the machine calls changed when waiters come and go, the registry when
//     replicas do, and backends and new placements when they may change the need of a model.
//  2. run, in one goroutine, calls notify for each of these models. notify reads the need at
//     that moment, so that the latest need is used whatever the order of the changes.
//  3. notify passes the need to the registry, which sends Wake to agents; to the backends,
//     which check their health; to the webhooks (hooks.go, internal/wake/webhook.go); and to
//     KEDA (internal/wake/keda.go), which reads it from kedaModels.
type notifiers struct {
	notifierDeps

	recent   *wake.Recent // when requests were last routed to each model
	webhooks *wake.Webhooks
	keda     *wake.KEDA
	hooks    atomic.Pointer[hooks]
	placing  sync.Mutex // held by placementsChanged

	mu    sync.Mutex
	dirty map[string]struct{} // models whose need may have changed
	wake  chan struct{}       // receives a token when there are such models
}

// notifierDeps are the parts that notifiers read and notify.
type notifierDeps struct {
	machine    *holdstate.Machine
	registry   *agentreg.Registry
	backends   *backend.Set
	own        observe.Needs // of this router
	placements func() decision.Placements
	policies   func() *policy.Policy // returns nil without a file
	site       observe.Needs         // nil if this router is alone
	activity   *site.Activity        // nil if this router is alone
	failed     func(model, reason string)
	look       func(model string) // notes the state of a model
}

func (a *App) newNotifiers(files *reload.Metrics) (*notifiers, error) {
	n := &notifiers{
		machine: a.machine, registry: a.registry, backends: a.backends, own: a.ownNeeds(), placements: a.placements, policies: a.policies,
		site: a.siteNeeds(), activity: a.activity, failed: a.wakeHasFailed, look: a.look,
		recent: wake.NewRecent(), dirty: map[string]struct{}{}, wake: make(chan struct{}, 1),
	}
	var headers *wake.HeadersFile
	if path := a.c.WebhookHeadersFile; path != "" {
		var err error
		headers, err = wake.LoadHeaders(path, reload.Options{Setting: "webhook-headers-file", Metrics: files, Log: a.log})
		if err != nil {
			return nil, fmt.Errorf("--webhook-headers-file: %w", err)
		}
		a.watched = append(a.watched, headers)
	}
	tls, err := wake.TLSFiles{CA: a.c.WebhookCAFile, Cert: a.c.WebhookCertFile, Key: a.c.WebhookKeyFile}.Client()
	if err != nil {
		return nil, fmt.Errorf("--webhook-ca-file, --webhook-cert-file: %w", err)
	}
	n.webhooks = wake.NewWebhooks(wake.WebhookOptions{
		Demand: kedaModels{n}.Demand, OnFailed: n.wakeRefused, Claims: a.claims(),
		Headers: headers, TLS: tls, Registerer: a.prometheus, Prefix: a.c.MetricsPrefix, Log: a.log,
	})
	n.keda = wake.NewKEDA(wake.KEDAOptions{Models: kedaModels{n}, Log: a.log})
	return n, nil
}

// changed is the wake signal: the need of a model may have changed. It does not block.
func (n *notifiers) changed(model string) {
	n.mu.Lock()
	n.dirty[model] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run calls notify for models whose need may have changed, until ctx ends.
func (n *notifiers) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		n.mu.Lock()
		dirty := n.dirty
		n.dirty = map[string]struct{}{}
		n.mu.Unlock()
		for model := range dirty {
			n.notify(model) //nolint:contextcheck // the calls of webhooks end with Stop
		}
	}
}

// notify passes on the current need of a model.
func (n *notifiers) notify(model string) {
	n.registry.SetNeed(model, n.machine.Need(model))
	n.backends.Changed(model)
	hs := n.hooks.Load()
	for _, name := range hs.byModel[model] {
		n.webhooks.Wanted(name, n.isDue(hs.all[name]), false)
	}
	n.keda.Changed(model)
	n.look(model)
}

// placementsChanged puts the webhooks of the current placements in force, and has the needs of
// their models passed on.
func (n *notifiers) placementsChanged() {
	n.placing.Lock() // so that the last call reads the latest placements and stores last
	defer n.placing.Unlock()
	hs := newHooks(n.placements())
	n.hooks.Store(hs)
	all := make(map[string]wake.Hook, len(hs.all))
	for name, h := range hs.all {
		all[name] = h.Hook
	}
	n.webhooks.Replace(all)
	for model := range hs.byModel {
		n.changed(model)
	}
}

// wakeRefused ends the waiters of a model that could not be woken in one way, unless it may
// still come up in another way. The other routers of the site are told.
func (n *notifiers) wakeRefused(model, reason string) {
	n.unlessWaking(model, func() { n.failed(model, reason) })
}

// wakeRefusedElsewhere is wakeRefused for a wake that failed on another router. until is the end
// of its cooldown. It returns false if the model may still come up here.
func (n *notifiers) wakeRefusedElsewhere(model, reason string, until time.Time) bool {
	return n.unlessWaking(model, func() { n.machine.FailFor(model, reason, time.Until(until)) })
}

// unlessWaking calls f unless the model may still come up: by an agent that is waking or waits
// for room, by a backend whose health check is running, or by a backend whose hook has not
// refused. It returns false if an agent may, or if a replica is up.
func (n *notifiers) unlessWaking(model string, f func()) bool {
	if n.registry.Waking(model) || n.registry.RoomWait(model) != nil || n.isUp(model, target.Kinds[:]) {
		return false
	}
	n.backends.UnlessUp(model, func() {
		if !n.backendMayWake(model) {
			f()
		}
	})
	return true
}

// backendMayWake reports whether a backend of the model has a hook that has not refused.
func (n *notifiers) backendMayWake(model string) bool {
	hs := n.hooks.Load()
	return slices.ContainsFunc(hs.byModel[model], func(name string) bool {
		return hs.all[name].backend != nil && !n.webhooks.Refused(name)
	})
}

// isUp reports whether a replica serves one of the kinds, and no request waits for one of
// them that no replica serves.
func (n *notifiers) isUp(model string, kinds []target.Kind) bool {
	up := false
	for _, kind := range kinds {
		t := target.Target{Model: model, Kind: kind}
		if n.registry.Serving(t) > 0 {
			up = true
		} else if n.machine.Waiting(t) {
			return false
		}
	}
	return up
}

// used reports whether a replica of the model has a request or recently had one.
func (n *notifiers) used(model string) bool { return n.usedWithin(model, wake.DefaultWindow) }

func (n *notifiers) usedWithin(model string, window time.Duration) bool {
	return n.recent.Within(model, window, time.Now()) || n.registry.InFlight(model) > 0
}

// stop ends the calls of webhooks, and KEDA's streams without an error, so that KEDA soon
// reconnects.
func (n *notifiers) stop(ctx context.Context) {
	n.webhooks.Stop(ctx)
	n.keda.Stop()
}

// kedaModels implements wake.Models. With --shared it answers for all routers of the site.
type kedaModels struct{ n *notifiers }

// needs returns the needs of the site, those of this router if it is alone.
func (k kedaModels) needs() observe.Needs {
	if k.n.site != nil {
		return k.n.site
	}
	return k.n.own
}

// Known implements wake.Models.
func (k kedaModels) Known(model, kind string) bool {
	p := k.n.placements()
	if kind == "" {
		return p.Holds(model)
	}
	parsed, err := target.ParseKind(kind)
	return err == nil && p.Holdable(target.Target{Model: model, Kind: parsed})
}

// Wanted implements wake.Models.
func (k kedaModels) Wanted(model string) bool { return k.needs().Wanted(model) }

// Demand implements wake.Models.
func (k kedaModels) Demand(model string) int { return k.needs().Demand(model) }

// Active implements wake.Models.
func (k kedaModels) Active(model string, window time.Duration) bool {
	return k.Wanted(model) || k.n.usedWithin(model, window) || k.n.activity != nil && k.n.activity.Used(model, window)
}
