// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/audit"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

func (a *App) newRegistry() (*agentreg.Registry, error) {
	c := a.c
	var allow []netip.Prefix
	for _, s := range c.AgentsAllowCIDR {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("--agents-allow-cidr: %w", err)
		}
		allow = append(allow, p)
	}
	return agentreg.New(agentreg.Options{
		Log: a.log, Liveness: c.AgentLiveness, GroupGrace: c.GroupGrace, AllowCIDR: allow,
		OnChange:     a.replicasChanged,
		SlotWaiters:  func(t target.Target) int { return a.machine.SlotWaiters(t) },
		OnFewer:      a.engineHasFewer,
		OnWakeFailed: func(model, reason string) { a.notifiers.wakeRefused(model, reason) },
		OnLost:       a.metrics.Lost,
		OnServing: func(agent *agentreg.AgentInfo) {
			a.metrics.Serving(agent)
			for _, model := range agent.Models {
				a.notifiers.changed(model)
			}
		},
	}), nil
}

// replicasChanged is called after each change of the replicas or slots of a target.
func (a *App) replicasChanged(t target.Target) {
	a.machine.Update(t)
	if a.registry.Serving(t) == 0 {
		// The model may have lost its last replica while it is wanted.
		a.notifiers.changed(t.Model)
	}
}

func (a *App) newMachine() *holdstate.Machine {
	c, m := a.c, a.metrics
	o := holdstate.Options{
		Limits: holdstate.Limits{
			PerModel: c.WakeHoldMax, PerKey: c.WakeHoldMaxPerKey, Total: c.WakeHoldMaxTotal,
			Bytes: int64(c.WakeHoldMaxBytes), BytesPerModel: int64(c.HoldBytesPerModel()), QueueDepth: c.QueueDepth,
		},
		Others: func(model string) bool { return a.placements().HoldsOthers(model) },
		Linger: c.WakeLinger, Cooldown: c.WakeCooldown, InOrder: c.WakeOrder == "arrival",
		Slots:         a.capacity,
		OnWanted:      func(model string) { a.notifiers.changed(model) },
		OnOutcome:     m.HoldEnded,
		OnRefused:     a.rejected,
		OnQueued:      m.Queued,
		OnWake:        a.woke,
		OnSlotWaiters: a.registry.SlotWaitersChanged,
		OnRelease: func(t target.Target, n int) {
			a.log.Info().Str("model", t.Model).Stringer("kind", t.Kind).Int("requests", n).Msg("released")
			a.events.Add(events.Event{Type: events.Released, Model: t.Model, Kind: t.Kind.String(), Requests: n})
		},
	}
	a.shareDemand(&o)
	return holdstate.New(o)
}

// rejected is called when a request for a model that was up got no reservation or no slot.
func (a *App) rejected(model string, why error) {
	a.metrics.Rejected(model, why)
	if errors.Is(why, holdstate.ErrNoQueue) {
		a.registry.Refused(model)
	}
}

func (a *App) newMaps() *sitemap.Store {
	return sitemap.NewStore(a.c.SiteID, func(_, m *sitemap.Map) {
		a.notifiers.placementsChanged()
		a.machine.Reconcile(decision.Placements{Map: m, Backends: a.backends}.Holdable)
	}, sitemap.HintsFreshFor(a.c.HintsFreshFor))
}

// restore loads the map of an earlier run. If the file is damaged, it is renamed, and the
// router starts without a map.
func (a *App) restore() error {
	if a.c.MapFile == "" {
		return nil
	}
	var damaged *sitemap.DamagedError
	switch err := a.maps.Restore(a.c.MapFile); {
	case errors.As(err, &damaged):
		a.log.Error().Err(err).Msg("the map file is damaged: the router has no map until one is pushed")
	case errors.Is(err, sitemap.ErrForeign):
		return fmt.Errorf("--map-file is %s, which is not a sibling map: name a file of its own", a.c.MapFile)
	case err != nil:
		return fmt.Errorf("--map-file: %w", err)
	}
	a.maps.Persist(a.c.MapFile)
	return nil
}

func (a *App) newDecider() *decision.Decider {
	c, m := a.c, a.metrics
	return decision.New(decision.Options{
		SiteID: c.SiteID, HoldBudget: c.WakeHoldBudget, GraceUntil: time.Now().Add(c.RegistryGrace),
		Identities: c.IdentityMetadata != "", ForwardKeys: c.ForwardAuthorization,
		Destination: policy.Destination(c.Destination), Fallbacks: c.EndpointFallbacks,
		Keys: a.keys, Secrets: a.secrets, Maps: a.maps, Backends: a.backends, Registry: a.registry, Machine: a.machine,
		Capacity: a.capacity, Policies: a.policies, Engines: a.engines, Holds: a.siteHolds(), Site: a.siteView(), Log: a.log,
		Events: decision.Events{
			Waits: a.notifiers.changed, HoldEnded: m.HoldEnded, Rejected: a.rejected, TokenRejected: m.TokenRejected,
		},
	})
}

func (a *App) newAudit() (*audit.Log, error) {
	l, err := audit.Open(a.c.AuditFile, audit.Options{
		MaxMiB: int(a.c.AuditMaxSize >> 20), Backups: a.c.AuditBackups, Registerer: a.prometheus, Prefix: a.c.MetricsPrefix, Log: a.log,
	})
	if err != nil {
		return nil, fmt.Errorf("--audit-file: %w", err)
	}
	return l, nil
}

// identityPath returns the path of callers' identities in Envoy's metadata, nil without
// --identity-metadata.
func (a *App) identityPath() ([]string, error) {
	if a.c.IdentityMetadata == "" {
		return nil, nil
	}
	path, err := envoy.IdentityPath(a.c.IdentityMetadata)
	if err != nil {
		return nil, fmt.Errorf("--identity-metadata: %w", err)
	}
	return path, nil
}

// newData returns the ext_proc server.
func (a *App) newData(identityPath []string) *extproc.Server {
	c := a.c
	lane, gateway := a.relays()
	var others extproc.Others
	if a.others != nil {
		others = a.others
	}
	return extproc.New(extproc.Options{
		Keepalive: c.WakeKeepalive, RequestTimeout: c.RequestTimeout, AdmitPark: c.AdmitParkTimeout,
		MaxRequestBytes: int64(c.MaxRequestBytes), MaxBodyBytesTotal: int64(c.MaxBodyBytesTotal),
		RelayMaxBytes: int64(c.RelayMaxBytes), LateError: extproc.LateError(c.WakeLateError), CORSOrigins: c.CORSOrigins,
		IdentityMetadata: identityPath,
	}, extproc.Deps{
		NotReady: a.notReady,
		Decider:  a.decider,
		Observer: observe.Observer{Metrics: a.metrics, Audit: a.audit, Recent: a.notifiers.recent, Events: a.events, Log: a.log},
		Others:   others,
		Wakes:    a.machine,
		Relay:    lane,
		Gateway:  gateway,
		Tickets:  a.tickets(),
		Log:      a.log,
	})
}

// register registers the metrics that are read from the state of the router.
func (a *App) register() {
	prefix := a.c.MetricsPrefix
	a.prometheus.MustRegister(
		observe.NewDemand(observe.DemandOptions{
			Prefix: prefix, HasMap: a.c.SiteID != "", Holdable: a.holdable, Own: a.ownNeeds(), Site: a.siteNeeds(), Times: a.machine.WakeTimes,
		}),
		observe.NewLoad(prefix, a.capacity, a.registry, a.machine),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "event_readers", Help: "Clients of the admin API that read events now.",
		}, func() float64 { return float64(a.events.Readers()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
}

// newStatus returns the source of GET /v1/status.
func (a *App) newStatus() observe.Status {
	return observe.Status{
		SiteID: a.c.SiteID, NotReady: a.notReady, Warning: a.warning, InFlight: a.InFlight, Demand: a.ownNeeds().Demand, Wanted: a.ownNeeds().Wanted,
		Models: a.decider.Models, Agents: a.registry.Agents, Maps: a.maps,
		WakingSince: a.states.WakingSince, WakeTime: a.machine.WakeTime, Waiting: a.machine.Groups, HoldTimes: a.metrics.HoldTimes, Gateways: a.gateways,
	}
}
