// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
)

// resolveEvery is how often a router's name is looked up again.
const resolveEvery = 30 * time.Second

// agent is a running agent.
type agent struct {
	cfg      Config
	log      zerolog.Logger
	core     *core
	api      api
	health   checker
	at       atomic.Pointer[netip.AddrPort] // where the engine is asked
	fail     func(err error)
	sick     chan struct{} // the engine is not healthy any more
	saidBusy atomic.Bool   // of the engine that runs
	// background are health checks that a router asked for.
	background sync.WaitGroup
}

// Run stands for the engine until ctx ends, which is no error. It returns an
// error when the configuration is wrong, by its own judgement or by a router's
// that rejects the agent. When it returns, the routers have been told and the
// engine that it started has ended.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Ports != nil {
		l, err := cfg.Ports.choose(ctx)
		if err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		_ = l.Close() // until the engine starts
		cfg.BackendURL = "http://" + l.Addr().String()
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a, err := newAgent(ctx, cfg.withDefaults())
	if err != nil {
		return err
	}
	// The engine outlives the links: nobody may be sent to one that is ending.
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngine()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var failure error
	var once sync.Once
	a.fail = func(err error) {
		once.Do(func() { failure = err })
		cancel(err)
	}

	var engine sync.WaitGroup
	if a.core.onDemand() {
		engine.Go(func() { a.drive(engineCtx) })
	} else if err := a.firstReadyBeside(ctx); err == nil {
		engine.Go(func() { a.watch(engineCtx) })
	} else if ctx.Err() == nil {
		a.fail(err)
	}
	var links sync.WaitGroup
	for _, r := range cfg.Routers {
		links.Go(func() { a.follow(ctx, r) })
	}
	<-ctx.Done()
	if a.patience() > 0 {
		a.log.Info().Msg("leaving the routers: the engine stops when their requests are over; a second Ctrl-C ends it at once")
	}
	late, tooLate := context.WithTimeout(engineCtx, a.patience())
	defer tooLate()
	links.Wait()
	// A router that was gone before could not say what Envoy still carries.
	for a.busy(late) && pause(late, eagerPoll) {
		a.sayBusy()
	}
	stopEngine()
	engine.Wait()
	a.background.Wait()
	once.Do(func() {}) // orders the read of failure after its write
	return failure
}

// patience is how long the routers' requests may keep an agent from its end. One
// that does not stop the engine has no reason to wait.
func (a *agent) patience() time.Duration {
	if !a.core.onDemand() {
		return 0
	}
	return a.cfg.DrainTimeout
}

func newAgent(ctx context.Context, cfg Config) (*agent, error) {
	backend, err := parseBackend(cfg.BackendURL)
	if err != nil {
		return nil, fmt.Errorf("agent: --backend-url: %w", err)
	}
	all, err := cfg.resolve(ctx, backend)
	if err != nil {
		return nil, fmt.Errorf("agent: --backend-url: %w", err)
	}
	at := all[0]
	a := &agent{cfg: cfg, log: cfg.Log.With().Str("agent", cfg.ID).Logger()}
	address := at.String()
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	a.at.Store(&at)
	a.asks(backend, a.engineAt)
	a.core = newCore(cfg, uuid.NewString(), address)
	return a, nil
}

// engineAt is where the engine is asked.
func (a *agent) engineAt() netip.AddrPort { return *a.at.Load() }

// asks sets where the engine is asked.
func (a *agent) asks(backend *url.URL, at func() netip.AddrPort) {
	a.api = newAPI(a.cfg, backend, at)
	a.health = checker{api: a.api, path: a.cfg.HealthPath}
	if a.cfg.HealthModel {
		a.health.lists = a.listsModels
	}
	a.sick = make(chan struct{}, 1)
}

// resolve gives the addresses that stand for the backend, IPv4 first.
func (c *Config) resolve(ctx context.Context, u *url.URL) ([]netip.AddrPort, error) {
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", u.Port())
	if err != nil {
		return nil, fmt.Errorf("reading the port: %w", err)
	}
	lookup := c.lookup
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	ips, err := lookup(ctx, u.Hostname())
	if err == nil && len(ips) == 0 {
		err = errors.New("it has no address")
	}
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", u.Hostname(), err)
	}
	list := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		list[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port)) //nolint:gosec // a port
	}
	slices.SortStableFunc(list, func(a, b netip.AddrPort) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return list, nil
}

// firstReadyBeside is firstReady, and says meanwhile which routers cannot be reached.
func (a *agent) firstReadyBeside(ctx context.Context) error {
	looking, stop := context.WithCancel(ctx)
	var looks sync.WaitGroup
	for _, r := range a.cfg.Routers {
		if a.cfg.dial != nil {
			break // it leads to no address
		}
		looks.Go(func() { a.lookForRouter(looking, r) })
	}
	err := a.firstReady(ctx)
	stop()
	looks.Wait()
	return err
}

// lookForRouter warns if nobody listens at a router's address.
func (a *agent) lookForRouter(ctx context.Context, router string) {
	network, list := "unix", []string{strings.TrimPrefix(router, "unix://")}
	if list[0] == router {
		var err error
		if _, list, err = a.addresses(ctx, router); err != nil {
			a.warnOfRouter(ctx, router, err)
			return
		}
		network = "tcp"
	}
	for _, address := range list {
		dialer := net.Dialer{Timeout: welcomeTime}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			a.warnOfRouter(ctx, router, err)
			continue
		}
		_ = conn.Close()
	}
}

func (a *agent) warnOfRouter(ctx context.Context, router string, err error) {
	if ctx.Err() == nil {
		a.log.Warn().Str("router", router).Err(err).Str("next", "the agent connects when the engine is ready").
			Msg("no router answers: is --router right?")
	}
}

// firstReady waits for an engine that somebody else starts: as long as it takes
// until it is healthy, and no longer than a wake may take after that.
func (a *agent) firstReady(ctx context.Context) error {
	a.log.Info().Str("backend", a.cfg.BackendURL).Msg("waiting for the engine")
	begin := time.Now()
	if err := a.health.await(ctx, a.doubt()); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, a.cfg.WakeTimeout)
	defer cancel()
	if err := a.ready(limited); err != nil {
		return fmt.Errorf("agent: the engine is healthy, but was not ready within %v: %w", a.cfg.WakeTimeout, err)
	}
	a.log.Info().Stringer("after", time.Since(begin).Round(time.Millisecond)).Msg("engine is ready")
	a.core.set(serving, true)
	return nil
}

// follow keeps a link to every address of one router.
func (a *agent) follow(ctx context.Context, router string) {
	var links sync.WaitGroup
	defer links.Wait()
	if strings.HasPrefix(router, "unix://") {
		(&link{agent: a, address: router, host: "localhost"}).run(ctx, func() bool { return false })
		return
	}
	var mu sync.Mutex
	var current []string
	linked := map[string]bool{}
	problem := ""
	for first := true; ; first = false {
		host, found, err := a.addresses(ctx, router)
		switch {
		case ctx.Err() != nil:
			return
		case first && errors.Is(err, errTLS):
			a.fail(err)
			return
		case err != nil && err.Error() != problem:
			problem = err.Error()
			a.log.Warn().Str("router", router).Err(err).Msg("looking up the router")
		case err == nil:
			problem = ""
			mu.Lock()
			current = found
			for _, address := range found {
				if linked[address] {
					continue
				}
				linked[address] = true
				links.Go(func() {
					(&link{agent: a, address: address, host: host}).run(ctx, func() bool {
						mu.Lock()
						defer mu.Unlock()
						linked[address] = slices.Contains(current, address)
						return !linked[address]
					})
				})
			}
			mu.Unlock()
		}
		wait := resolveEvery
		if err != nil {
			wait = maxLinkBackoff
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// addresses resolves a router's name, and gives the name as well. Addresses that
// the agent may not talk to without TLS are left out, unless there are no others.
func (a *agent) addresses(ctx context.Context, router string) (host string, list []string, err error) {
	host, port, err := net.SplitHostPort(router)
	if err != nil {
		return "", nil, fmt.Errorf("reading %s: %w", router, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", nil, fmt.Errorf("resolving %s: %w", host, err)
	}
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.IsLoopback() || a.cfg.TLS.on() {
			list = append(list, net.JoinHostPort(ip.String(), port))
		}
	}
	if len(list) == 0 {
		return "", nil, fmt.Errorf("--router: %s: %w", router, errNeedsTLS(ips[0]))
	}
	return host, list, nil
}
