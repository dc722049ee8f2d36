// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/site"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/ticket"
	"github.com/holdgate/holdgate/internal/wake"
)

// sharedWait is how long a start waits for the state that the other routers share.
const sharedWait = time.Second

// newShared creates the client of the shared state, unless this router is alone.
func (a *App) newShared() (err error) {
	if a.c.Shared == "" {
		return nil
	}
	a.shared, err = shared.New(shared.Options{
		Address: sharedAddress(a.c), Registerer: a.prometheus, Prefix: a.c.MetricsPrefix, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("--shared: %w", err)
	}
	return nil
}

func sharedAddress(c *config.Serve) shared.Address {
	return shared.Address{URL: c.Shared, PasswordFile: c.SharedPasswordFile, CAFile: c.SharedCAFile}
}

// siteHolds returns the limits of held requests over all routers of the site, nil if this
// router is alone.
func (a *App) siteHolds() decision.Holds {
	if a.shared == nil {
		return nil
	}
	holds := site.NewHolds(a.shared, site.HoldLimits{
		PerModel: a.c.WakeHoldMax, PerKey: a.c.WakeHoldMaxPerKey, Total: a.c.WakeHoldMaxTotal,
	})
	a.prometheus.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: a.c.MetricsPrefix + "shared_holds_alone_total",
		Help: "Requests that were to be held and for which the server with the shared state had no answer in time.",
	}, func() float64 { return float64(holds.Alone()) }))
	return holds
}

// shareGate has the routers of the site share the limits of the admission gate.
func (a *App) shareGate() {
	if a.shared == nil {
		return
	}
	site.NewGate(a.shared, site.GateOptions{
		Capacity: a.capacity,
		Waits: func(model string) bool {
			gated, _ := a.machine.Depths(model)
			return gated > 0
		},
		Retry: func(model string) { a.machine.Update(target.Target{Model: model}) }, // and of all kinds
	})
}

// shareMaps has the routers of the site share their map, and know of one another.
func (a *App) shareMaps() {
	if a.shared != nil {
		a.siteMaps = site.NewMaps(a.shared, a.maps, a.log)
		a.siteRouters = site.NewRouters(a.shared, a.log, a.describe)
	}
}

// limiter returns what counts the quotas of keys, nil when this router is alone.
func (a *App) limiter() access.Limiter {
	if a.shared == nil {
		return nil
	}
	return site.NewQuotas(a.shared)
}

// claims returns the claims by which one router of the site calls a webhook, nil when this router
// is alone.
func (a *App) claims() wake.Claims {
	if a.shared == nil {
		return nil
	}
	return site.NewHooks(a.shared)
}

// tickets returns what signs tickets, and accepts each once, with --shared once for the site.
func (a *App) tickets() *ticket.Office {
	o := ticket.New(a.secrets)
	if a.shared != nil {
		o.Share(site.NewTickets(a.shared).UsedElsewhere)
	}
	return o
}

// runShared starts the client, and waits a moment until it is up, so that the first requests
// are decided with what the other routers know.
func (a *App) runShared(ctx context.Context) {
	if a.shared == nil {
		return
	}
	a.wg.Go(func() { a.shared.Run(ctx) })
	limited, cancel := context.WithTimeout(ctx, sharedWait)
	defer cancel()
	a.shared.AwaitUp(limited)
	if a.shared.Up() {
		a.siteMaps.Sync(limited) // before a request could be answered with map_not_loaded
	}
}
