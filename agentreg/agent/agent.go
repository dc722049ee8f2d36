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
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// agent is a running agent.
type agent struct {
	cfg        Config
	log        zerolog.Logger
	core       *core
	api        api
	health     checker
	engineAddr atomic.Pointer[netip.AddrPort] // where the engine is reached
	fail       func(err error)                // ends the agent with an error
	unhealthy  chan struct{}                  // receives a token when the engine becomes unhealthy
	busyLogged atomic.Bool                    // logBusy has logged for the running engine
	formers    formers                        // the routers that there are links to by connectFormer
	// background tracks the health checks that routers have requested.
	background sync.WaitGroup
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
	a.engineAddr.Store(&at)
	a.setAPI(backend, a.engineAddress)
	a.core = newCore(cfg, uuid.NewString(), address)
	return a, nil
}

// engineAddress returns the address that requests to the engine are sent to.
func (a *agent) engineAddress() netip.AddrPort { return *a.engineAddr.Load() }

// setAPI sets the client and the health check of the engine.
func (a *agent) setAPI(backend *url.URL, at func() netip.AddrPort) {
	a.api = newAPI(a.cfg, backend, at)
	a.health = checker{api: a.api, path: a.cfg.HealthPath}
	if a.cfg.HealthModel {
		a.health.checkModels = a.checkModelsListed
	}
	a.unhealthy = make(chan struct{}, 1)
}

// resolve returns the addresses of the backend, IPv4 first.
func (c *Config) resolve(ctx context.Context, u *url.URL) ([]netip.AddrPort, error) {
	if u.Scheme == unixScheme {
		return []netip.AddrPort{protocol.PoolAddress(protocol.PoolOf(u.Path))}, nil
	}
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
