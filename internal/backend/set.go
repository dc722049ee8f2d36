// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/wake"
	"github.com/holdgate/holdgate/sitemap"
)

// quietAfter is how long a backend is still checked after its last request. It is the time
// for which KEDA considers it active, too.
const quietAfter = wake.DefaultWindow

// Options are the options of a running Set.
type Options struct {
	Registry *agentreg.Registry
	// Wanted reports whether requests wait for the model, Used whether a replica of it has
	// a request or recently had one.
	Wanted, Used func(model string) bool
	// OnHealth is called for each model of a backend when its health checks begin to fail,
	// and when they no longer fail.
	OnHealth func(model string)
	// OnModels is called when a backend has listed its models.
	OnModels func()
	// Client sends the requests to the engines; nil: each backend has its own.
	Client *http.Client
	Log    zerolog.Logger
}

// Set is the set of all backends.
type Set struct{ all []*Backend }

// Backend is one of a Set.
type Backend struct {
	Config

	id       string // of its agent
	key      string
	tls      *tls.Config // nil without https
	upstream Upstream
	offer    atomic.Pointer[offer]
	changed  chan struct{} // receives a token when the need of its models may have changed
	health   health
}

// Upstream is how Envoy must send a request to a backend.
type Upstream struct {
	Key, Host, Prefix string
	// CAFile is the file with the authorities of its certificate: envoy.SystemCA for the
	// system's, empty without TLS.
	CAFile, SNI string
	// Pool is the pool whose lane of Envoy leads to the backend, empty for none.
	Pool string
	// NotTaken is a list of statuses, separated by commas.
	NotTaken string
}

// offer is the models and kinds that a backend serves.
type offer struct {
	models []string
	kinds  []target.Kind
}

// New returns a Set of backends, which Read has checked. It reads the files of their keys
// and authorities.
func New(configs []Config) (*Set, error) {
	s := &Set{}
	var errs []error
	for i, c := range configs {
		m := &Backend{Config: c, id: protocol.BackendPrefix + c.Name, changed: make(chan struct{}, 1)}
		m.offer.Store(&offer{models: c.Models, kinds: c.ServedKinds()})
		if c.APIKeyFile != "" {
			var err error
			if m.key, err = enginekey.Read(c.APIKeyFile); err != nil {
				errs = append(errs, fmt.Errorf("--config: backends[%d].api_key_file: %w (line %d)", i, err, c.keyLine))
			}
		}
		if err := m.prepare(); err != nil {
			errs = append(errs, fmt.Errorf("--config: backends[%d].ca_file: %w (line %d)", i, err, c.caLine))
		}
		s.all = append(s.all, m)
	}
	return s, errors.Join(errs...)
}

// prepare sets upstream and tls. Its errors are about CAFile.
func (m *Backend) prepare() error {
	u, err := url.Parse(m.BackendURL)
	if err != nil {
		return err // cannot happen: Read has parsed the URL
	}
	m.upstream = Upstream{
		Key: m.key, Host: cmp.Or(m.Host, u.Host), Prefix: strings.TrimSuffix(u.Path, "/"), SNI: m.SNI,
		NotTaken: strings.Trim(strings.ReplaceAll(fmt.Sprint(m.NotTaken), " ", ","), "[]"),
	}
	if pool := m.PoolLane(); pool != "" {
		m.upstream.Host, m.upstream.Prefix, m.upstream.Pool = cmp.Or(m.Host, pool), "", pool
	}
	if !m.Secure() {
		return nil
	}
	m.upstream.CAFile = cmp.Or(m.CAFile, envoy.SystemCA)
	name, _, err := net.SplitHostPort(m.upstream.Host)
	if err != nil {
		name = m.upstream.Host
	}
	m.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cmp.Or(m.SNI, strings.Trim(name, "[]"))}
	if m.CAFile == "" {
		return nil
	}
	text, err := reload.Read(m.CAFile, reload.MaxBytes)
	if err != nil {
		return err
	}
	m.tls.RootCAs, err = certs.Authorities(text)
	return err
}

// Run runs the backends until ctx ends. When it returns, they have left the registry.
func (s *Set) Run(ctx context.Context, o Options) {
	if len(s.all) == 0 {
		return
	}
	server := grpc.NewServer(o.Registry.ServerOptions()...)
	agentregpb.RegisterAgentRegistryServer(server, o.Registry.OwnService())
	inMemory := bufconn.Listen(1 << 16)
	var serving, running sync.WaitGroup
	serving.Go(func() { _ = server.Serve(inMemory) }) // returns only after Stop
	for _, m := range s.all {
		running.Go(func() {
			if err := agent.RunBackend(ctx, m.agentConfig(o), m.demand(o), inMemory.Dial); err != nil {
				o.Log.Error().Err(err).Msg("a backend cannot be used")
			}
		})
	}
	running.Wait()
	server.Stop()
	serving.Wait()
}

// agentConfig returns the Config of the backend's agent.
func (m *Backend) agentConfig(o Options) agent.Config {
	c := m.Config.Config
	c.ID, c.APIKey, c.HTTPClient, c.Log = m.id, m.key, o.Client, o.Log
	c.Host, c.BackendTLS = m.upstream.Host, m.tls
	return c
}

func (m *Backend) demand(o Options) agent.Demand {
	report := func(changed bool) {
		if !changed {
			return
		}
		for _, model := range m.offer.Load().models {
			o.OnHealth(model)
		}
	}
	return agent.Demand{
		Wanted:   func(models []string) bool { return slices.ContainsFunc(models, o.Wanted) },
		Used:     func(models []string) bool { return slices.ContainsFunc(models, o.Used) },
		InUse:    func(id string) bool { return o.Registry.IdleFor(id) < quietAfter },
		Changed:  m.changed,
		OnCheck:  m.health.begin,
		OnResult: func(err error) { report(m.health.end(err)) },
		OnIdle:   func() { report(m.health.reset()) },
		OnModels: func(models, names []string) {
			listed := &offer{models: models}
			for _, name := range names {
				if k, err := protocol.ParseKind(name); err == nil {
					listed.kinds = append(listed.kinds, k)
				}
			}
			m.offer.Store(listed)
			o.OnModels()
		},
	}
}

// Changed makes the backends of a model check its need. It never blocks.
func (s *Set) Changed(model string) {
	for _, m := range s.all {
		if !slices.Contains(m.offer.Load().models, model) {
			continue
		}
		select {
		case m.changed <- struct{}{}:
		default: // it has yet to check for an earlier change, and will see this one too
		}
	}
}

// withTarget returns the backends that serve the target.
func (s *Set) withTarget(t target.Target) []*Backend {
	var found []*Backend
	for _, m := range s.all {
		if o := m.offer.Load(); slices.Contains(o.models, t.Model) && slices.Contains(o.kinds, t.Kind) {
			found = append(found, m)
		}
	}
	return found
}

// Here returns the target as a placement at this site whose requests may be held. If several
// backends serve it, the longest MaxWait is used.
func (s *Set) Here(t target.Target) (p sitemap.Placement, ok bool) {
	for _, m := range s.withTarget(t) {
		p.Target, p.ScaleFromZero, ok = t, true, true
		p.HoldBudget = max(p.HoldBudget, m.MaxWait)
	}
	return p, ok
}

// All returns the backends in the order of the configuration.
func (s *Set) All() []*Backend { return s.all }

// Targets returns the targets that the backend serves. There are none until its models are
// known.
func (m *Backend) Targets() []target.Target {
	o := m.offer.Load()
	var targets []target.Target
	for _, model := range o.models {
		for _, kind := range o.kinds {
			targets = append(targets, target.Target{Model: model, Kind: kind})
		}
	}
	return targets
}

// Failing reports whether the last health check of the backend failed.
func (m *Backend) Failing() bool { return m.health.failed() }

// AllFailing reports whether all backends of the target are failing.
func (s *Set) AllFailing(t target.Target) bool {
	return !slices.ContainsFunc(s.withTarget(t), func(m *Backend) bool { return !m.Failing() })
}

// UnlessUp calls f if the health checks of all backends of the model fail: at once, or after
// those that are running.
func (s *Set) UnlessUp(model string, f func()) {
	for _, m := range s.all {
		if slices.Contains(m.offer.Load().models, model) {
			next := f
			f = func() { m.health.unlessUp(next) }
		}
	}
	f()
}

// Models returns the names of all models, sorted.
func (s *Set) Models() []string {
	models := map[string]struct{}{}
	for _, m := range s.all {
		for _, name := range m.offer.Load().models {
			models[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(models))
}

// Has reports whether a backend serves the model.
func (s *Set) Has(model string) bool {
	return slices.ContainsFunc(s.all, func(m *Backend) bool { return slices.Contains(m.offer.Load().models, model) })
}

// Upstream returns how requests are sent to the backend with this agent id; ok is false if
// the id is not that of a backend.
func (s *Set) Upstream(agentID string) (u *Upstream, ok bool) {
	if !strings.HasPrefix(agentID, protocol.BackendPrefix) {
		return nil, false
	}
	id, _, _ := strings.Cut(agentID, agent.ReplicaMark)
	for _, m := range s.all {
		if m.id == id {
			return &m.upstream, true
		}
	}
	return nil, false
}
