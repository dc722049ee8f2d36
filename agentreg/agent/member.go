// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// The results of the last check of a member.
const (
	unchecked int32 = iota
	down
	up
)

// member is the agent of one address of a backend. Its methods are for its own
// goroutine, unless noted.
type member struct {
	*agent

	fleet   *fleet
	address atomic.Pointer[netip.AddrPort] // the one that it stands for; nil: none
	result  atomic.Int32                   // of the last check
	all     atomic.Pointer[[]*member]      // the members of the fleet
	due     chan struct{}                  // has a token when it is to check, or to leave
	moved   chan struct{}                  // has a token when address changed
	missed  int                            // lookups in a row without its address; for the fleet
	unlink  func()                         // ends the link
	logged  string                         // the problem that was last logged
}

// newMember returns one more member of the fleet.
func newMember(f *fleet, index int) *member {
	cfg := f.cfg
	if index > 0 {
		cfg.ID += ReplicaMark + strconv.Itoa(index+1)
	}
	cfg.Models, cfg.Kinds = f.serves()
	a := &agent{cfg: cfg, log: cfg.Log.With().Str("agent", cfg.ID).Logger()}
	a.fail = func(err error) { a.log.Error().Err(err).Msg("the backend cannot be registered") }
	m := &member{agent: a, fleet: f, due: make(chan struct{}, 1), moved: make(chan struct{}, 1), unlink: func() {}}
	a.setAPI(f.backend, a.engineAt)
	a.core = newCore(cfg, uuid.NewString(), "")
	return m
}

// setAddress gives the member another address, nil for none. It is for the fleet.
func (m *member) setAddress(address *netip.AddrPort) {
	m.missed = 0
	m.result.Store(unchecked)
	m.address.Store(address)
	notify(m.moved)
	if address == nil {
		notify(m.due)
	}
}

// run checks whenever the fleet wakes it, and serves after a check that succeeds, until
// ctx ends.
func (m *member) run(ctx context.Context) {
	defer func() {
		m.unlink()
		m.background.Wait()
	}()
	if address := m.address.Load(); address != nil && len(m.cfg.Models) > 0 {
		m.register(ctx, *address, asleep)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.due:
		}
		address := m.address.Load()
		if address == nil {
			m.unlink()
			m.unlink = func() {}
			m.core.setAddress("", asleep)
			continue
		}
		if m.check(ctx, *address) {
			m.keepServing(ctx, *address)
		}
	}
}

// check checks once whether the engine can serve, and reports it to the fleet.
func (m *member) check(ctx context.Context, address netip.AddrPort) bool {
	begin := time.Now()
	m.at.Store(&address)
	m.fleet.demand.OnCheck()
	err := m.tryEngine(ctx)
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil:
		m.logged = ""
		m.log.Info().Stringer("address", address).Stringer("after", time.Since(begin).Round(time.Millisecond)).Msg("backend is ready")
		m.result.Store(up)
	default:
		if err.Error() != m.logged {
			m.logged = err.Error()
			m.log.Info().Err(err).Msg("the backend is not ready yet")
		}
		m.result.Store(down)
	}
	m.fleet.checked(*m.all.Load(), err)
	return err == nil
}

// tryEngine makes the engine ready, in one try. The health check is short: the next try
// may find another address.
func (m *member) tryEngine(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, steadyPoll)
	defer cancel()
	if err := m.health.check(short); err != nil {
		return err
	}
	if len(m.cfg.Models) == 0 {
		if err := m.discover(short); err != nil {
			return err
		}
		m.fleet.setServes(m.cfg.Models, m.cfg.Kinds)
	}
	if !m.cfg.needsWarmup() {
		return nil
	}
	long, end := context.WithTimeout(ctx, m.cfg.WakeTimeout)
	defer end()
	return m.warmUp(long)
}

// keepServing keeps the address in routing for as long as it is healthy and the backend is
// needed.
func (m *member) keepServing(ctx context.Context, address netip.AddrPort) {
	m.register(ctx, address, serving)
	defer notify(m.fleet.lost)
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { m.watch(ctx) })
	tick := time.NewTicker(steadyPoll)
	defer tick.Stop()
	for needed := true; needed; {
		select {
		case <-ctx.Done():
			needed = false
		case <-m.unhealthy:
			needed = false
		case <-m.moved:
			now := m.address.Load()
			needed = now != nil && *now == address
		case <-tick.C:
			needed = m.fleet.demand.InUse(m.cfg.ID) || m.fleet.needed()
		}
	}
	m.core.set(asleep, false)
	m.result.CompareAndSwap(up, unchecked)
	stop()
	watching.Wait()
}

// register reports the phase of the address to the router. An agent has one address for
// the life of a stream, so another address needs another link.
func (m *member) register(ctx context.Context, address netip.AddrPort, p phase) {
	select {
	case <-m.unhealthy: // of the last time that it served
	default:
	}
	if m.core.address == address.String() {
		m.core.set(p, p == serving)
		return
	}
	m.unlink()
	m.core.setAddress(address.String(), p)
	ctx, cancel := context.WithCancel(ctx)
	var linked sync.WaitGroup
	linked.Go(func() {
		(&link{agent: m.agent, address: "self"}).run(ctx, func() bool { return false })
	})
	m.unlink = func() {
		cancel()
		linked.Wait()
	}
}
