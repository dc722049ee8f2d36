// SPDX-License-Identifier: Apache-2.0

// Package app wires the parts of holdgate serve together, starts them and stops
// them in the right order.
package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/audit"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// App is a running holdgate serve.
type App struct {
	c          *config.Serve
	log        zerolog.Logger
	maps       *sitemap.Store
	registry   *agentreg.Registry
	machine    *holdstate.Machine
	data       *extproc.Server
	audit      *audit.Log
	notifiers  *notifiers
	watched    []watchedFile
	keys       *access.Store
	revoker    *revoker // nil without keys
	engines    *enginekey.File
	backends   *backend.Set
	hooks      atomic.Pointer[hooks]
	placing    sync.Mutex // held while what follows from the placements is put in force
	secrets    *hop.Secrets
	decider    *decision.Decider
	policy     *reload.File[policy.Policy]
	metrics    *prometheus.Registry
	series     *observe.Metrics
	wakeSignal *wakeSignal

	envoy, agents *grpc.Server
	health        *health.Server
	admin         *http.Server
	listeners     listeners
	draining      atomic.Bool
	mapWait       time.Time          // until then the router is not ready without a map
	endBackground context.CancelFunc // of the goroutines that Start starts
	failed        chan error
	wg            sync.WaitGroup
}

// watchedFile is a file that is read again when it changes.
type watchedFile interface {
	Watch(ctx context.Context)
	Reload() error
}

// New makes an app from a checked configuration. It opens only the audit log, which a
// Start that fails and Stop close.
func New(c *config.Serve, log zerolog.Logger) (*App, error) {
	adminTokens, err := config.ReadTokens(c.AdminTokenFile)
	if err != nil {
		return nil, fmt.Errorf("--admin-token-file: %w", err)
	}
	a := &App{
		c: c, log: log, metrics: prometheus.NewRegistry(), wakeSignal: newWakeSignal(), health: health.NewServer(),
		mapWait:       time.Now().Add(c.MapWait),
		endBackground: func() {}, failed: make(chan error, 4), // one for each server
	}
	for _, warning := range c.Warnings() {
		log.Warn().Msg(warning)
	}
	if err := a.wire(); err != nil {
		return nil, err
	}
	a.admin = newAdminServer(admin.Handler(admin.Deps{
		Wake: a.wakeModel, WakeFailed: a.wakeFailed,
		Tokens: adminTokens, Maps: a.maps, Metrics: a.metrics, Ready: a.notReady, Warning: a.warning, Explain: a.decider.Explain, Status: a.status, Log: log,
	}))
	return a, nil
}

// wire makes the parts of the decision and ties their callbacks.
func (a *App) wire() error {
	c := a.c
	files := reload.NewMetrics(c.MetricsPrefix, a.metrics)
	err := a.files(files)
	if err != nil {
		return err
	}
	if a.backends, err = backend.New(c.Backends); err != nil {
		return err
	}
	m := observe.NewMetrics(a.metrics, observe.Options{Prefix: c.MetricsPrefix, Tenants: a.tenants, Identities: c.IdentityMetadata != ""})
	a.series = m
	var allow []netip.Prefix
	for _, s := range c.AgentsAllowCIDR {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("--agents-allow-cidr: %w", err)
		}
		allow = append(allow, p)
	}
	a.registry = agentreg.New(agentreg.Options{
		Log: a.log, Liveness: c.AgentLiveness, GroupGrace: c.GroupGrace, AllowCIDR: allow,
		OnChange:     a.replicasChanged,
		OnFewer:      a.engineHasFewer,
		OnWakeFailed: a.wakeRefused,
		OnServing: func(agent *agentreg.AgentInfo) {
			m.Serving(agent)
			for _, model := range agent.Models {
				a.wakeSignal.changed(model)
			}
		},
	})
	capacity := admission.NewCapacity(a.registry, a.policies)
	a.machine = holdstate.New(holdstate.Options{
		Limits: holdstate.Limits{
			PerModel: c.WakeHoldMax, PerKey: c.WakeHoldMaxPerKey, Total: c.WakeHoldMaxTotal,
			Bytes: int64(c.WakeHoldMaxBytes), BytesPerModel: int64(c.HoldBytesPerModel()), QueueDepth: c.QueueDepth,
		},
		Others: func(model string) bool { return a.placements().HoldsOthers(model) },
		Linger: c.WakeLinger, Cooldown: c.WakeCooldown, InOrder: c.WakeOrder == "arrival",
		Slots:     capacity,
		OnWanted:  a.wakeSignal.changed,
		OnOutcome: m.HoldEnded,
		OnRefused: m.Rejected,
		OnQueued:  m.Queued,
		OnWake:    m.Woke,
		OnRelease: func(t target.Target, n int) {
			a.log.Info().Str("model", t.Model).Stringer("kind", t.Kind).Int("requests", n).Msg("released")
		},
	})
	if a.keys != nil {
		a.revoker = newRevoker(a.keys, a.machine)
	}
	if a.agents, err = a.newAgents(files); err != nil {
		return err
	}
	if a.notifiers, err = a.newNotifiers(files); err != nil {
		return err
	}
	a.maps = sitemap.NewStore(c.SiteID, func(_, m *sitemap.Map) {
		a.placed()
		a.machine.Reconcile(decision.Placements{Map: m, Backends: a.backends}.Holdable)
	}, sitemap.HintsFreshFor(c.HintsFreshFor))
	if err := a.restore(); err != nil {
		return err
	}
	a.placed()
	a.metrics.MustRegister(
		observe.NewDemand(c.MetricsPrefix, a.holdable, a.machine),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	a.decider = decision.New(decision.Options{
		SiteID: c.SiteID, HoldBudget: c.WakeHoldBudget, GraceUntil: time.Now().Add(c.RegistryGrace),
		Identities: c.IdentityMetadata != "", ForwardKeys: c.ForwardAuthorization,
		Keys: a.keys, Secrets: a.secrets, Maps: a.maps, Backends: a.backends, Registry: a.registry, Machine: a.machine,
		Capacity: capacity, Policies: a.policies, Engines: a.engines, Log: a.log,
		Events: decision.Events{
			Waits: a.wakeSignal.changed, HoldEnded: m.HoldEnded, Rejected: m.Rejected, TokenRejected: m.TokenRejected,
		},
	})
	var identities []string
	if c.IdentityMetadata != "" {
		if identities, err = envoy.IdentityPath(c.IdentityMetadata); err != nil {
			return fmt.Errorf("--identity-metadata: %w", err)
		}
	}
	options, err := a.secured(extProcCerts(c), files)
	if err != nil {
		return err
	}
	// The last step that can fail, for it opens the file.
	a.audit, err = audit.Open(c.AuditFile, audit.Options{
		MaxMiB: int(c.AuditMaxSize >> 20), Backups: c.AuditBackups, Registerer: a.metrics, Prefix: c.MetricsPrefix, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("--audit-file: %w", err)
	}
	a.metrics.MustRegister(observe.NewLoad(c.MetricsPrefix, capacity, a.registry, a.machine))
	network, address := config.Address(c.Relay)
	a.data = extproc.New(extproc.Options{
		Keepalive: c.WakeKeepalive, RequestTimeout: c.RequestTimeout, AdmitPark: c.AdmitParkTimeout,
		MaxRequestBytes: int64(c.MaxRequestBytes), MaxBodyBytesTotal: int64(c.MaxBodyBytesTotal),
		RelayMaxBytes: int64(c.RelayMaxBytes), LateError: extproc.LateError(c.WakeLateError), CORSOrigins: c.CORSOrigins,
		IdentityMetadata: identities,
	}, extproc.Deps{
		NotReady: a.notReady,
		Decider:  a.decider,
		Observer: observe.Observer{Metrics: m, Audit: a.audit, Recent: a.notifiers.recent, Log: a.log},
		Wakes:    a.machine,
		Relay:    extproc.NewRelay(network, address),
		Log:      a.log,
	})
	a.envoy = grpc.NewServer(slices.Concat(grpcLimits(), options, extproc.ServerOptions())...)
	a.data.Register(a.envoy)
	return nil
}

// files loads the files of keys, secrets and policies, those that are named.
func (a *App) files(metrics *reload.Metrics) error {
	var err error
	if path := a.c.AuthFile; path != "" {
		a.keys, err = access.Load(path, reload.Options{
			Setting: "auth-file", Metrics: metrics, Log: a.log,
		})
		if err != nil {
			return err // it names the flag
		}
		a.watched = append(a.watched, a.keys)
	}
	if path := a.c.HopSecretFile; path != "" {
		if a.secrets, err = hop.Load(path, a.c.SiteID); err != nil {
			return fmt.Errorf("--hop-secret-file: %w", err)
		}
	}
	if path := a.c.PolicyFile; path != "" {
		parse := func(text []byte, _ *policy.Policy) (*policy.Policy, error) { return policy.Parse(text) }
		a.policy, err = reload.Load(path, parse, reload.Options{Setting: "policy-file", Metrics: metrics, Log: a.log})
		if err != nil {
			return err // it names the flag
		}
		a.watched = append(a.watched, a.policy)
	}
	if path := a.c.EngineAuthFile; path != "" {
		a.engines, err = enginekey.Load(path, reload.Options{Setting: "engine-auth-file", Metrics: metrics, Log: a.log})
		if err != nil {
			return err // it names the flag
		}
		for _, file := range a.engines.Current().Files() {
			if warning := config.Exposed("--engine-auth-file", file); warning != "" {
				a.log.Warn().Msg(warning)
			}
		}
		a.watched = append(a.watched, a.engines)
	}
	return nil
}

// placements are the present ones.
func (a *App) placements() decision.Placements {
	return decision.Placements{Map: a.maps.Current(), Backends: a.backends}
}

// policies are those of now; nil: there is no file of them.
func (a *App) policies() *policy.Policy {
	if a.policy == nil {
		return nil
	}
	return a.policy.Current()
}

// tenants are those who are known to send requests.
func (a *App) tenants() []string {
	switch {
	case a.keys != nil:
		return a.keys.Current().Tenants()
	case a.c.IdentityMetadata != "":
		return nil
	}
	return []string{access.DefaultTenant}
}

// holdable lists the models that may be held here.
func (a *App) holdable() observe.Holdable {
	p := a.placements()
	return observe.Holdable{MapLoaded: p.Map != nil, Models: p.Held()}
}

// keeper removes the series of names that are gone.
func (a *App) keeper() observe.Keeper {
	return observe.Keeper{
		Metrics: a.series, Keep: a.c.MetricsKeep,
		KnownModel: a.decider.Known, Agents: a.registry.Agents, Recent: a.notifiers.recent,
	}
}

// restore loads the map of an earlier run. A damaged one is set aside: the router
// starts without a map, and says so.
func (a *App) restore() error {
	if a.c.MapFile == "" {
		return nil
	}
	var damaged *sitemap.DamagedError
	switch err := a.maps.Restore(a.c.MapFile); {
	case errors.As(err, &damaged):
		a.log.Error().Err(err).Msg("the map file is damaged: the router has no map until one is pushed")
	case errors.Is(err, sitemap.ErrForeign):
		return fmt.Errorf("--map-file is %s, which is no sibling map: name a file of its own", a.c.MapFile)
	case err != nil:
		return fmt.Errorf("--map-file: %w", err)
	}
	a.maps.Persist(a.c.MapFile)
	return nil
}

// noMap is what a router with a site does not have.
const noMap = "no sibling map was pushed or restored yet: push one with holdgate map push -f FILE"

// notReady says why no traffic should be sent here; empty when all is well. A map that
// does not come must not keep the router from serving what it can: a push through a load
// balancer that leaves out routers that are not ready would never arrive.
func (a *App) notReady() string {
	switch {
	case a.draining.Load():
		return "the router is shutting down"
	case a.lacksMap() && time.Now().Before(a.mapWait):
		return noMap
	}
	return ""
}

// warning says what a router that is ready lacks; empty for nothing.
func (a *App) warning() string {
	if a.lacksMap() {
		return noMap
	}
	return ""
}

func (a *App) lacksMap() bool { return a.c.SiteID != "" && a.maps.Current() == nil }
