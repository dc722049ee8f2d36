// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/wake"
)

// notifiers is who else is told that a model is wanted: KEDA and webhooks.
type notifiers struct {
	recent *wake.Recent
	hooks  *wake.Webhooks
	keda   *wake.KEDA
	server *grpc.Server // nil without --keda-listen
}

func (a *App) newNotifiers(files *reload.Metrics) (*notifiers, error) {
	o := &notifiers{recent: wake.NewRecent()}
	var headers *wake.HeadersFile
	if path := a.c.WebhookHeadersFile; path != "" {
		var err error
		headers, err = wake.LoadHeaders(path, reload.Options{Setting: "webhook-headers-file", Metrics: files, Log: a.log})
		if err != nil {
			return nil, fmt.Errorf("--webhook-headers-file: %w", err)
		}
		a.watched = append(a.watched, headers)
	}
	hookTLS, err := wake.TLSFiles{CA: a.c.WebhookCAFile, Cert: a.c.WebhookCertFile, Key: a.c.WebhookKeyFile}.Client()
	if err != nil {
		return nil, fmt.Errorf("--webhook-ca-file, --webhook-cert-file: %w", err)
	}
	o.hooks = wake.NewWebhooks(wake.WebhookOptions{
		Demand:   func(model string) int { return a.machine.Demand(model) },
		OnFailed: a.wakeRefused,
		Headers:  headers, TLS: hookTLS, Registerer: a.metrics, Prefix: a.c.MetricsPrefix, Log: a.log,
	})
	o.keda = wake.NewKEDA(wake.KEDAOptions{Models: wokenModels{a}, Log: a.log})
	if a.c.KEDAListen == "" {
		return o, nil
	}
	options, err := a.secured(kedaCerts(a.c), files)
	if err != nil {
		return nil, err
	}
	o.server = grpc.NewServer(append(grpcLimits(), options...)...)
	externalscaler.RegisterExternalScalerServer(o.server, o.keda)
	a.health.SetServingStatus(externalscaler.ExternalScaler_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(o.server, a.health)
	return o, nil
}

// wakeRefused ends the waiters of a model that could not be woken in one way, unless
// another way is still open: an agent that is bringing it up or waits for room to, a
// backend whose health is being asked for, or one whose hook has not refused.
func (a *App) wakeRefused(model, reason string) {
	if a.registry.Waking(model) || a.registry.RoomWait(model) != nil || a.isUp(model, target.Kinds[:]) {
		return
	}
	a.backends.UnlessUp(model, func() {
		if !a.backendMayWake(model) {
			a.machine.Fail(model, reason)
		}
	})
}

// backendMayWake says whether the hook of one of the model's backends has not refused.
func (a *App) backendMayWake(model string) bool {
	hs := a.hooks.Load()
	return slices.ContainsFunc(hs.of[model], func(name string) bool {
		return hs.all[name].backend != nil && !a.notifiers.hooks.Refused(name)
	})
}

// stop tells nobody any more. KEDA connects again at once when its streams end
// without an error.
func (o *notifiers) stop(ctx context.Context) {
	o.hooks.Stop(ctx)
	o.keda.Stop()
	if o.server != nil {
		o.server.Stop()
	}
}

// look carries what a model's wish is now to all who can wake it.
func (a *App) look(model string) {
	need := a.machine.Need(model)
	a.registry.SetNeed(model, need)
	a.backends.Look(model)
	hs := a.hooks.Load()
	for _, name := range hs.of[model] {
		a.notifiers.hooks.Wanted(name, a.due(hs.all[name]), false)
	}
	a.notifiers.keda.Changed(model)
}

// isUp says whether a replica serves one of the kinds, and none of them is waited
// for in vain.
func (a *App) isUp(model string, kinds []target.Kind) bool {
	up := false
	for _, kind := range kinds {
		t := target.Target{Model: model, Kind: kind}
		if a.registry.Serving(t) > 0 {
			up = true
		} else if a.machine.Waiting(t) {
			return false
		}
	}
	return up
}

// replicasChanged is told of every change of a target's replicas and slots.
func (a *App) replicasChanged(t target.Target) {
	a.machine.Update(t)
	if a.registry.Serving(t) == 0 {
		// It may have lost its last replica while it is wanted.
		a.wakeSignal.changed(t.Model)
	}
}

// wokenModels is what KEDA asks about.
type wokenModels struct{ a *App }

// Known is part of wake.Models.
func (w wokenModels) Known(model, kind string) bool {
	p := w.a.placements()
	if kind == "" {
		return p.Holds(model)
	}
	k, err := target.ParseKind(kind)
	return err == nil && p.Holdable(target.Target{Model: model, Kind: k})
}

// Wanted is part of wake.Models.
func (w wokenModels) Wanted(model string) bool { return w.a.machine.Wanted(model) }

// Demand is part of wake.Models.
func (w wokenModels) Demand(model string) int { return w.a.machine.Demand(model) }

// Active is part of wake.Models.
func (w wokenModels) Active(model string, window time.Duration) bool {
	return w.a.machine.Wanted(model) || w.a.usedWithin(model, window)
}

// used says whether a replica of the model has a request, or had one a moment ago.
func (a *App) used(model string) bool { return a.usedWithin(model, wake.DefaultWindow) }

func (a *App) usedWithin(model string, window time.Duration) bool {
	return a.notifiers.recent.Within(model, window, time.Now()) || a.registry.InFlight(model) > 0
}
