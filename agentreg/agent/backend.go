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

// What an address of a backend has said of itself.
const (
	notAsked int32 = iota
	isDown
	isUp
)

// visitor is the agent of one address of a backend. Its methods are for one goroutine,
// unless they say otherwise.
type visitor struct {
	*agent

	fleet  *fleet
	to     atomic.Pointer[netip.AddrPort] // the address that it is for; nil: none
	said   atomic.Int32                   // of itself
	all    atomic.Pointer[[]*visitor]     // those of the fleet
	turn   chan struct{}                  // it is to ask, or to leave
	moved  chan struct{}                  // to is another one
	missed int                            // lookups without its address; of the fleet
	leave  func()                         // ends the link
	logged string                         // the problem that was last logged
}

// newVisitor is one more of the fleet's.
func newVisitor(f *fleet, index int) *visitor {
	cfg := f.cfg
	if index > 0 {
		cfg.ID += ReplicaMark + strconv.Itoa(index+1)
	}
	cfg.Models, cfg.Kinds = f.known()
	a := &agent{cfg: cfg, log: cfg.Log.With().Str("agent", cfg.ID).Logger()}
	a.fail = func(err error) { a.log.Error().Err(err).Msg("the backend cannot be registered") }
	v := &visitor{agent: a, fleet: f, turn: make(chan struct{}, 1), moved: make(chan struct{}, 1), leave: func() {}}
	a.asks(f.backend, a.engineAt)
	a.core = newCore(cfg, uuid.NewString(), "")
	return v
}

// send gives the visitor another address, nil for none. It is for the fleet.
func (v *visitor) send(to *netip.AddrPort) {
	v.missed = 0
	v.said.Store(notAsked)
	v.to.Store(to)
	poke(v.moved)
	if to == nil {
		poke(v.turn)
	}
}

// run asks when it is its turn, until ctx ends.
func (v *visitor) run(ctx context.Context) {
	defer func() {
		v.leave()
		v.background.Wait()
	}()
	if to := v.to.Load(); to != nil && len(v.cfg.Models) > 0 {
		v.register(ctx, *to, asleep)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.turn:
		}
		to := v.to.Load()
		if to == nil {
			v.leave()
			v.leave = func() {}
			v.core.move("", asleep)
			continue
		}
		if v.ask(ctx, *to) {
			v.visit(ctx, *to)
		}
	}
}

// ask asks once whether the engine can serve.
func (v *visitor) ask(ctx context.Context, to netip.AddrPort) bool {
	asked := time.Now()
	v.at.Store(&to)
	v.fleet.demand.OnAsk()
	err := v.look(ctx)
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil:
		v.logged = ""
		v.log.Info().Stringer("address", to).Stringer("after", time.Since(asked).Round(time.Millisecond)).Msg("backend is ready")
		v.said.Store(isUp)
	default:
		if err.Error() != v.logged {
			v.logged = err.Error()
			v.log.Info().Err(err).Msg("the backend is not ready yet")
		}
		v.said.Store(isDown)
	}
	v.fleet.answered(*v.all.Load(), err)
	return err == nil
}

// look asks once. An address that nobody answers at costs little, for the next try may
// find another.
func (v *visitor) look(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, steadyPoll)
	defer cancel()
	if err := v.health.check(limited); err != nil {
		return err
	}
	if len(v.cfg.Models) == 0 {
		if err := v.discover(limited); err != nil {
			return err
		}
		v.fleet.named(v.cfg.Models, v.cfg.Kinds)
	}
	if !v.cfg.warms() {
		return nil
	}
	long, end := context.WithTimeout(ctx, v.cfg.WakeTimeout)
	defer end()
	return v.warm(long)
}

// named takes in what the backend serves.
func (f *fleet) named(models, kinds []string) {
	f.mu.Lock()
	f.models, f.kinds = models, kinds
	f.mu.Unlock()
	f.demand.OnModels(models, kinds)
}

// visit keeps the address in routing for as long as it is healthy and somebody needs
// it.
func (v *visitor) visit(ctx context.Context, to netip.AddrPort) {
	v.register(ctx, to, serving)
	defer poke(v.fleet.down)
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { v.watch(ctx) })
	look := time.NewTicker(steadyPoll)
	defer look.Stop()
	for needed := true; needed; {
		select {
		case <-ctx.Done():
			needed = false
		case <-v.sick:
			needed = false
		case <-v.moved:
			at := v.to.Load()
			needed = at != nil && *at == to
		case <-look.C:
			needed = v.fleet.demand.InUse(v.cfg.ID) || v.fleet.needed()
		}
	}
	v.core.set(asleep, false)
	v.said.CompareAndSwap(isUp, notAsked)
	stop()
	watching.Wait()
}

// register tells the router the state of the address. A router knows an agent by one
// address, so another one needs another link.
func (v *visitor) register(ctx context.Context, at netip.AddrPort, p phase) {
	select {
	case <-v.sick: // at an earlier visit
	default:
	}
	if v.core.address == at.String() {
		v.core.set(p, p == serving)
		return
	}
	v.leave()
	v.core.move(at.String(), p)
	ctx, cancel := context.WithCancel(ctx)
	var linked sync.WaitGroup
	linked.Go(func() {
		(&link{agent: v.agent, address: "self"}).run(ctx, func() bool { return false })
	})
	v.leave = func() {
		cancel()
		linked.Wait()
	}
}
