// SPDX-License-Identifier: Apache-2.0

// Package app connects the parts of holdgate serve, and starts and stops them in the right
// order.
package app

import (
	"context"
	"crypto/x509"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/audit"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/site"
	"github.com/holdgate/holdgate/sitemap"
)

// App is a running holdgate serve.
type App struct {
	c   *config.Serve
	log zerolog.Logger

	prometheus *prometheus.Registry
	watched    []watchedFile
	keys       *access.Store               // nil without --auth-file
	secrets    *hop.Secrets                // nil without --hop-secret-file
	policy     *reload.File[policy.Policy] // nil without --policy-file
	engines    *enginekey.File             // nil without --engine-auth-file
	relayCAs   *x509.CertPool              // nil without --relay-ca-file
	backends   *backend.Set
	maps       *sitemap.Store
	shared     *shared.Client // nil without --shared
	siteMaps   *site.Maps     // nil without --shared
	demand     *site.Demand   // nil without --shared
	activity   *site.Activity // nil without --shared
	learned    *site.Learned  // nil without --shared
	fails      *site.Fails    // nil without --shared

	siteRouters *site.Routers // nil without --shared

	metrics   *observe.Metrics
	audit     *audit.Log
	registry  *agentreg.Registry
	capacity  *admission.Capacity
	machine   *holdstate.Machine
	notifiers *notifiers
	revoker   *revoker // nil without keys
	decider   *decision.Decider
	data      *extproc.Server
	envoys    *envoys
	others    *others // nil without --takeover
	events    *events.Log
	states    *events.Models
	status    func() *admin.Status

	envoy, agents *grpc.Server
	keda          *grpc.Server // nil without --keda-listen
	health        *health.Server
	admin         *http.Server
	listeners     listeners
	draining      atomic.Bool
	started       time.Time
	replaced      atomic.Bool        // another process has taken over
	handedOver    chan struct{}      // closed when the last request after a takeover has ended
	mapWait       time.Time          // until then the router is not ready without a map
	endBackground context.CancelFunc // ends the goroutines that Start has started
	failed        chan error
	wg            sync.WaitGroup
}

// New returns an App for a valid configuration. It opens only the audit log, which Stop
// closes, and Start if it fails.
func New(c *config.Serve, log zerolog.Logger) (*App, error) {
	a := &App{
		c: c, log: log, prometheus: prometheus.NewRegistry(), health: health.NewServer(),
		started: time.Now(), mapWait: time.Now().Add(c.MapWait), handedOver: make(chan struct{}),
		endBackground: func() {}, failed: make(chan error, 4), // one for each server
	}
	a.events = events.NewLog()
	a.states = events.NewModels(a.events)
	for _, warning := range c.Warnings() {
		log.Warn().Msg(warning)
	}
	if err := a.wire(); err != nil {
		return nil, err
	}
	return a, nil
}

// wire creates the parts, each after those that it needs. A callback may use a part that is
// created later, since callbacks are called only while the app runs.
func (a *App) wire() (err error) {
	c, files := a.c, reload.NewMetrics(a.c.MetricsPrefix, a.prometheus)
	a.metrics = observe.NewMetrics(a.prometheus, observe.Options{
		Prefix: c.MetricsPrefix, Tenants: a.tenants, Identities: c.IdentityMetadata != "",
		Held: func() []string { return a.placements().Held() }, Known: func(model string) bool { return a.decider.Known(model) },
	})
	if c.Takeover {
		a.others = newOthers(a.log)
		a.others.changed = func(model string) { a.notifiers.keda.Changed(model) }
		a.others.logged = func(e *wire.LogEntry) bool { return a.data.Logged(e) }
		a.others.routers = func(sockets map[string]string) { a.registry.SetFormer(sockets) }
	}
	if err := a.newShared(); err != nil {
		return err
	}
	if err := a.loadFiles(files); err != nil {
		return err
	}
	if a.backends, err = backend.New(c.Backends); err != nil {
		return err
	}
	if a.registry, err = a.newRegistry(); err != nil {
		return err
	}
	a.newSiteDemand()
	a.capacity = admission.NewCapacity(a.registry, a.policies)
	a.machine = a.newMachine()
	a.shareGate()
	if a.keys != nil {
		a.revoker = newRevoker(a.keys, a.machine)
	}
	if a.notifiers, err = a.newNotifiers(files); err != nil {
		return err
	}
	a.maps = a.newMaps()
	if err := a.restore(); err != nil {
		return err
	}
	a.shareMaps()
	a.notifiers.placementsChanged()
	a.decider = a.newDecider()
	a.register()
	if a.agents, err = a.newAgentServer(files); err != nil {
		return err
	}
	if a.keda, err = a.newKEDAServer(files); err != nil {
		return err
	}
	a.status = a.newStatus().Now
	if a.admin, err = a.newAdmin(); err != nil {
		return err
	}
	identityPath, err := a.identityPath()
	if err != nil {
		return err
	}
	tls, err := a.tlsOptions(extProcCerts(c), files)
	if err != nil {
		return err
	}
	if a.audit, err = a.newAudit(); err != nil { // the last step that can fail: it opens the log
		return err
	}
	a.data = a.newData(identityPath)
	a.envoys = a.newEnvoys()
	a.envoy = grpc.NewServer(slices.Concat(envoyLimits(), tls, extproc.ServerOptions())...)
	a.data.Register(a.envoy)
	healthpb.RegisterHealthServer(a.envoy, envoyHealth{notReady: a.notReady})
	return nil
}

// placements returns the placements in force.
func (a *App) placements() decision.Placements {
	return decision.Placements{Map: a.maps.Current(), Backends: a.backends}
}

// policies returns the policies in force, nil without --policy-file.
func (a *App) policies() *policy.Policy {
	if a.policy == nil {
		return nil
	}
	return a.policy.Current()
}

// tenants returns the tenants that are known before they send a request, sorted.
func (a *App) tenants() []string {
	switch {
	case a.keys != nil:
		return a.keys.Current().Tenants()
	case a.c.IdentityMetadata != "":
		return nil
	}
	return []string{access.DefaultTenant}
}

// holdable returns the models whose requests may be held here.
func (a *App) holdable() observe.Holdable {
	p := a.placements()
	return observe.Holdable{MapLoaded: p.Map != nil, Models: p.Held()}
}

// keeper returns the Keeper that removes the series of models and agents that are gone.
func (a *App) keeper() observe.Keeper {
	return observe.Keeper{
		Metrics: a.metrics, Keep: a.c.MetricsKeep,
		KnownModel: a.decider.Known, Agents: a.registry.Agents, Recent: a.notifiers.recent,
	}
}
