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

// quietAfter is how long after its last request a backend is still checked. For KEDA it
// is in use for as long.
const quietAfter = wake.DefaultWindow

// Options are the options of a running Set.
type Options struct {
	Registry *agentreg.Registry
	// Wanted reports whether requests wait for the model, and Used whether a replica of it
	// has a request, or had one a moment ago.
	Wanted, Used func(model string) bool
	// OnHealth is called when the health checks of a backend begin or cease to fail.
	OnHealth func(model string)
	// OnModels is called when a backend has listed its models.
	OnModels func()
	// Client is for requests to the engines; nil: each backend has its own.
	Client *http.Client
	Log    zerolog.Logger
}

// Set is all backends.
type Set struct{ all []*Backend }

// Backend is one of a Set.
type Backend struct {
	Config

	id      string // of its agent
	key     string
	tls     *tls.Config // nil without https
	wants   Wants
	offer   atomic.Pointer[offer]
	changed chan struct{} // the need of its models may have changed
	health  health
}

// Wants is what a backend needs of its requests and of the connection.
type Wants struct {
	Key, Host, Prefix string
	// CAFile has the authorities of its certificate, envoy.SystemCA for those of the
	// machine, and nothing without TLS.
	CAFile, SNI string
	// NotTaken are statuses with commas between them.
	NotTaken string
}

// offer is what a backend serves.
type offer struct {
	models []string
	kinds  []target.Kind
}

// New returns a Set of valid backends. It reads the files of their keys.
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

// prepare sets wants and tls. Its error is that of CAFile.
func (m *Backend) prepare() error {
	u, err := url.Parse(m.BackendURL)
	if err != nil {
		return err // not after Read
	}
	m.wants = Wants{
		Key: m.key, Host: cmp.Or(m.Host, u.Host), Prefix: strings.TrimSuffix(u.Path, "/"), SNI: m.SNI,
		NotTaken: strings.Trim(strings.ReplaceAll(fmt.Sprint(m.NotTaken), " ", ","), "[]"),
	}
	if !m.Secure() {
		return nil
	}
	m.wants.CAFile = cmp.Or(m.CAFile, envoy.SystemCA)
	name, _, err := net.SplitHostPort(m.wants.Host)
	if err != nil {
		name = m.wants.Host
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

// Run runs the backends until ctx ends and the registry has been notified.
func (s *Set) Run(ctx context.Context, o Options) {
	if len(s.all) == 0 {
		return
	}
	server := grpc.NewServer(o.Registry.ServerOptions()...)
	agentregpb.RegisterAgentRegistryServer(server, o.Registry.OwnService())
	inMemory := bufconn.Listen(1 << 16)
	var serving, running sync.WaitGroup
	serving.Go(func() { _ = server.Serve(inMemory) }) // only Stop ends it
	for _, m := range s.all {
		running.Go(func() {
			if err := agent.RunBackend(ctx, m.agent(o), m.demand(o), inMemory.Dial); err != nil {
				o.Log.Error().Err(err).Msg("a backend cannot be used")
			}
		})
	}
	running.Wait()
	server.Stop()
	serving.Wait()
}

// agent returns the Config of an agent beside the backend.
func (m *Backend) agent(o Options) agent.Config {
	c := m.Config.Config
	c.ID, c.APIKey, c.HTTPClient, c.Log = m.id, m.key, o.Client, o.Log
	c.Host, c.BackendTLS = m.wants.Host, m.tls
	return c
}

func (m *Backend) demand(o Options) agent.Demand {
	tell := func(changed bool) {
		for _, model := range m.offer.Load().models {
			if changed {
				o.OnHealth(model)
			}
		}
	}
	return agent.Demand{
		Wanted:   func(models []string) bool { return slices.ContainsFunc(models, o.Wanted) },
		Used:     func(models []string) bool { return slices.ContainsFunc(models, o.Used) },
		InUse:    func(id string) bool { return o.Registry.IdleFor(id) < quietAfter },
		Changed:  m.changed,
		OnCheck:  m.health.begin,
		OnResult: func(err error) { tell(m.health.end(err)) },
		OnIdle:   func() { tell(m.health.reset()) },
		OnModels: func(models, names []string) {
			of := &offer{models: models}
			for _, name := range names {
				if k, err := protocol.ParseKind(name); err == nil {
					of.kinds = append(of.kinds, k)
				}
			}
			m.offer.Store(of)
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
		default: // it has not checked yet, and will see this change too
		}
	}
}

// of returns the backends that have the target.
func (s *Set) of(t target.Target) []*Backend {
	var found []*Backend
	for _, m := range s.all {
		if of := m.offer.Load(); slices.Contains(of.models, t.Model) && slices.Contains(of.kinds, t.Kind) {
			found = append(found, m)
		}
	}
	return found
}

// Here returns the target as a placement at this site: requests for it may be held. Of
// several backends the longest MaxWait counts.
func (s *Set) Here(t target.Target) (p sitemap.Placement, ok bool) {
	for _, m := range s.of(t) {
		p.Target, p.ScaleFromZero, ok = t, true, true
		p.HoldBudget = max(p.HoldBudget, m.MaxWait)
	}
	return p, ok
}

// All returns the backends in the order of the configuration.
func (s *Set) All() []*Backend { return s.all }

// Targets returns what the backend serves, as far as that is known.
func (m *Backend) Targets() []target.Target {
	of := m.offer.Load()
	var targets []target.Target
	for _, model := range of.models {
		for _, kind := range of.kinds {
			targets = append(targets, target.Target{Model: model, Kind: kind})
		}
	}
	return targets
}

// Failing reports whether the last health check of the backend failed.
func (m *Backend) Failing() bool { return m.health.failed() }

// AllFailing reports whether every backend of the target is Failing.
func (s *Set) AllFailing(t target.Target) bool {
	return !slices.ContainsFunc(s.of(t), func(m *Backend) bool { return !m.Failing() })
}

// UnlessUp calls f when the health checks of all backends of the model have failed: at
// once, or after those that run.
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

// Has reports whether a backend has the model.
func (s *Set) Has(model string) bool {
	return slices.ContainsFunc(s.all, func(m *Backend) bool { return slices.Contains(m.offer.Load().models, model) })
}

// Wants returns what the backend of an agent id needs; ok is false if the id is not that
// of a backend.
func (s *Set) Wants(agentID string) (w *Wants, ok bool) {
	if !strings.HasPrefix(agentID, protocol.BackendPrefix) {
		return nil, false
	}
	id, _, _ := strings.Cut(agentID, agent.ReplicaMark)
	for _, m := range s.all {
		if m.id == id {
			return &m.wants, true
		}
	}
	return nil, false
}
