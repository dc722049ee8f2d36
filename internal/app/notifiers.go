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
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/wake"
)

// notifiers tell everything that can wake a model whether the model should be up:
//
//  1. What may have changed the need of a model calls changed, the wake signal: the machine
//     when waiters come and go, the registry when replicas do, backends, and new placements.
//  2. run, one goroutine, calls tell for each of these models. It reads the need at that
//     moment, so that the latest one counts in whatever order the changes come.
//  3. tell passes the need to the registry, which sends Wake to agents; to the backends,
//     whose health is asked for; to the webhooks (hooks.go, internal/wake/webhook.go); and
//     to KEDA (internal/wake/keda.go), which reads it by kedaModels.
type notifiers struct {
	notifierDeps

	recent   *wake.Recent // when requests were last routed to each model
	webhooks *wake.Webhooks
	keda     *wake.KEDA
	hooks    atomic.Pointer[hooks]
	placing  sync.Mutex // held while the hooks of new placements are put in force

	mu    sync.Mutex
	dirty map[string]struct{} // models whose need may have changed
	wake  chan struct{}       // has a value when there are such models
}

// notifierDeps are what notifiers read and tell.
type notifierDeps struct {
	machine    *holdstate.Machine
	registry   *agentreg.Registry
	backends   *backend.Set
	placements func() decision.Placements
	policies   func() *policy.Policy // returns nil without a file
}

func (a *App) newNotifiers(files *reload.Metrics) (*notifiers, error) {
	n := &notifiers{
		machine: a.machine, registry: a.registry, backends: a.backends, placements: a.placements, policies: a.policies,
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
		Demand: a.machine.Demand, OnFailed: n.wakeRefused,
		Headers: headers, TLS: tls, Registerer: a.prometheus, Prefix: a.c.MetricsPrefix, Log: a.log,
	})
	n.keda = wake.NewKEDA(wake.KEDAOptions{Models: kedaModels{n}, Log: a.log})
	return n, nil
}

// changed notes that the need of a model may have changed. It does not block.
func (n *notifiers) changed(model string) {
	n.mu.Lock()
	n.dirty[model] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run tells of models that have changed until ctx ends.
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
			n.tell(model) //nolint:contextcheck // the calls of webhooks end with Stop
		}
	}
}

// tell passes on what the need of a model is at this moment.
func (n *notifiers) tell(model string) {
	n.registry.SetNeed(model, n.machine.Need(model))
	n.backends.Changed(model)
	hs := n.hooks.Load()
	for _, name := range hs.of[model] {
		n.webhooks.Wanted(name, n.due(hs.all[name]), false)
	}
	n.keda.Changed(model)
}

// placed puts the webhooks of the present placements in force, and tells them of their
// models.
func (n *notifiers) placed() {
	n.placing.Lock() // the last to come must have seen everything
	defer n.placing.Unlock()
	hs := newHooks(n.placements())
	n.hooks.Store(hs)
	all := make(map[string]wake.Hook, len(hs.all))
	for name, h := range hs.all {
		all[name] = h.Hook
	}
	n.webhooks.Replace(all)
	for model := range hs.of {
		n.changed(model)
	}
}

// wakeRefused ends the waiters of a model that could not be woken in one way, unless
// another way is still open: an agent that is bringing it up or waits for room to, a
// backend whose health is being asked for, or one whose hook has not refused.
func (n *notifiers) wakeRefused(model, reason string) {
	if n.registry.Waking(model) || n.registry.RoomWait(model) != nil || n.isUp(model, target.Kinds[:]) {
		return
	}
	n.backends.UnlessUp(model, func() {
		if !n.backendMayWake(model) {
			n.machine.Fail(model, reason)
		}
	})
}

// backendMayWake reports whether a backend of the model has a hook that has not refused.
func (n *notifiers) backendMayWake(model string) bool {
	hs := n.hooks.Load()
	return slices.ContainsFunc(hs.of[model], func(name string) bool {
		return hs.all[name].backend != nil && !n.webhooks.Refused(name)
	})
}

// isUp reports whether a replica serves one of the kinds, and no request waits for another
// one of them, which nothing serves.
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

// used reports whether a replica of the model has a request, or had one a moment ago.
func (n *notifiers) used(model string) bool { return n.usedWithin(model, wake.DefaultWindow) }

func (n *notifiers) usedWithin(model string, window time.Duration) bool {
	return n.recent.Within(model, window, time.Now()) || n.registry.InFlight(model) > 0
}

// stop ends the calls of webhooks, and KEDA's streams without an error: KEDA then connects
// again at once.
func (n *notifiers) stop(ctx context.Context) {
	n.webhooks.Stop(ctx)
	n.keda.Stop()
}

// kedaModels are the wake.Models that KEDA reads.
type kedaModels struct{ n *notifiers }

// Known is part of wake.Models.
func (k kedaModels) Known(model, kind string) bool {
	p := k.n.placements()
	if kind == "" {
		return p.Holds(model)
	}
	parsed, err := target.ParseKind(kind)
	return err == nil && p.Holdable(target.Target{Model: model, Kind: parsed})
}

// Wanted is part of wake.Models.
func (k kedaModels) Wanted(model string) bool { return k.n.machine.Wanted(model) }

// Demand is part of wake.Models.
func (k kedaModels) Demand(model string) int { return k.n.machine.Demand(model) }

// Active is part of wake.Models.
func (k kedaModels) Active(model string, window time.Duration) bool {
	return k.Wanted(model) || k.n.usedWithin(model, window)
}
