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

// The possible values of member.result.
const (
	unchecked int32 = iota
	down
	up
)

// member is the agent of one address of a backend. Its methods are called only by its own
// goroutine, unless noted.
type member struct {
	*agent

	fleet   *fleet
	address atomic.Pointer[netip.AddrPort] // its address; nil: none
	result  atomic.Int32                   // of the last check
	all     atomic.Pointer[[]*member]      // the members of the fleet
	due     chan struct{}                  // receives a token when it must check, or leave
	moved   chan struct{}                  // receives a token when address changes
	missed  int                            // lookups in a row without its address; used only by the fleet
	unlink  func()                         // ends the link
	logged  string                         // the problem that was last logged
}

// newMember returns a member of the fleet, at this index among the members.
func newMember(f *fleet, index int) *member {
	cfg := f.cfg
	if index > 0 {
		cfg.ID += ReplicaMark + strconv.Itoa(index+1)
	}
	cfg.Models, cfg.Kinds = f.serves()
	a := &agent{cfg: cfg, log: cfg.Log.With().Str("agent", cfg.ID).Logger()}
	a.fail = func(err error) { a.log.Error().Err(err).Msg("the backend cannot be registered") }
	m := &member{agent: a, fleet: f, due: make(chan struct{}, 1), moved: make(chan struct{}, 1), unlink: func() {}}
	a.setAPI(f.backend, a.engineAddress)
	a.core = newCore(cfg, uuid.NewString(), "")
	return m
}

// setAddress sets the member's address, nil for none. The fleet calls it.
func (m *member) setAddress(address *netip.AddrPort) {
	m.missed = 0
	m.result.Store(unchecked)
	m.address.Store(address)
	notify(m.moved)
	if address == nil {
		notify(m.due)
	}
}

// run checks the engine whenever the fleet requests it, and keeps the address in routing
// after a check that succeeds, until ctx ends.
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

// check checks once whether the engine can serve, and reports the result to the fleet.
func (m *member) check(ctx context.Context, address netip.AddrPort) bool {
	begin := time.Now()
	m.engineAddr.Store(&address)
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
	m.fleet.report(*m.all.Load(), err)
	return err == nil
}

// tryEngine checks the engine's health, reads its models and warms it up. The first two must
// be fast, since the next try may use another address.
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

// keepServing keeps the address in routing as long as the engine is healthy and the backend
// is needed.
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
	m.core.setPhase(asleep, false)
	m.result.CompareAndSwap(up, unchecked)
	stop()
	watching.Wait()
}

// register reports the phase of the address to the router. The address of a stream is that
// of its Hello, so another address needs another link.
func (m *member) register(ctx context.Context, address netip.AddrPort, p phase) {
	select {
	case <-m.unhealthy: // left from the last time that it served
	default:
	}
	if m.core.address == address.String() {
		m.core.setPhase(p, p == serving)
		return
	}
	m.unlink()
	m.core.setAddress(address.String(), p)
	ctx, cancel := context.WithCancel(ctx)
	var linked sync.WaitGroup
	(&link{agent: m.agent, address: "self", group: &linked, gone: func() bool { return false }}).start(ctx)
	m.unlink = func() {
		cancel()
		linked.Wait()
	}
}
