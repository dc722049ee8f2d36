// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdgate/holdgate/agentreg"
)

// CheckBackendURL says what is wrong with where an engine listens, nil for nothing.
func CheckBackendURL(s string) error {
	_, err := parseBackend(s)
	return err
}

// Demand is what a router knows of who needs a backend.
type Demand struct {
	// Wanted says whether somebody waits for one of the models.
	Wanted func(models []string) bool
	// Used says whether a replica of one of the models, this or another one, has
	// requests, or had some a moment ago.
	Used func(models []string) bool
	// InUse says whether the backend has requests, or had some a moment ago.
	InUse func() bool
	// Changed has a token when Wanted may have changed.
	Changed <-chan struct{}
	// OnModels hears what the backend named, when the Config has no models.
	OnModels func(models, kinds []string)
	// OnAsk and OnAnswer frame each question of whether the backend can serve, while
	// it is not in routing; the error says why it cannot. OnIdle says that it is not
	// asked any more.
	OnAsk    func()
	OnAnswer func(err error)
	OnIdle   func()
}

// RunBackend stands for an engine that runs elsewhere and has no agent, inside of
// its only router, which dial connects to, until ctx ends. It asks the engine only
// while somebody waits for its models or uses them, and is asleep otherwise, whatever
// the engine is. Without models the engine is first asked for them. Of cfg neither
// Routers nor anything that is for Exec counts.
func RunBackend(ctx context.Context, cfg Config, d Demand, dial func() (net.Conn, error)) error {
	b, err := newVisitor(cfg.withDefaults(), d, dial)
	if err != nil {
		return err
	}
	defer func() {
		b.leave()
		b.background.Wait()
	}()
	b.announce(ctx)
	for ctx.Err() == nil {
		b.idle(ctx)
		if b.seek(ctx) {
			b.visit(ctx)
		}
	}
	return nil
}

// visitor is the agent of a backend. Its methods are for one goroutine.
type visitor struct {
	*agent

	demand  Demand
	backend *url.URL
	leave   func() // ends the link
	logged  string // the problem that was last logged
}

func newVisitor(cfg Config, d Demand, dial func() (net.Conn, error)) (*visitor, error) {
	backend, err := parseBackend(cfg.BackendURL)
	if err != nil {
		return nil, fmt.Errorf("backend %s: url: %w", cfg.ID, err)
	}
	cfg.dial = func(string) (net.Conn, error) { return dial() }
	a := &agent{cfg: cfg, log: cfg.Log.With().Str("agent", cfg.ID).Logger()}
	a.fail = func(err error) { a.log.Error().Err(err).Msg("the backend cannot be registered") }
	b := &visitor{agent: a, demand: d, backend: backend, leave: func() {}}
	a.asks(backend, a.engineAt)
	a.core = newCore(cfg, uuid.NewString(), "")
	return b, nil
}

// announce registers a backend that nobody has looked at. One whose name or models
// are not known has to wait until they are.
func (b *visitor) announce(ctx context.Context) {
	if len(b.cfg.Models) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, steadyPoll)
	defer cancel()
	if list, err := b.resolve(limited); err == nil {
		b.register(ctx, list[0], asleep)
	}
}

// wanted says whether somebody waits for the backend. One whose models are not known
// is wanted for them.
func (b *visitor) wanted() bool {
	return len(b.cfg.Models) == 0 || b.demand.Wanted(b.cfg.Models)
}

// needed says whether the backend is to be looked at: also while another replica
// serves what it has, so that it is there when that one fails.
func (b *visitor) needed() bool { return b.wanted() || b.demand.Used(b.cfg.Models) }

// idle waits until the backend is needed.
func (b *visitor) idle(ctx context.Context) {
	look := time.NewTicker(steadyPoll)
	defer look.Stop()
	for !b.needed() {
		b.demand.OnIdle()
		select {
		case <-ctx.Done():
			return
		case <-b.demand.Changed:
		case <-look.C: // nobody tells when a model is used
		}
	}
}

// seek asks until the backend can serve, and reports false when it is needed no
// more. The name is looked up for each try; of several addresses each try takes the
// next.
func (b *visitor) seek(ctx context.Context) bool {
	begin := time.Now()
	for try := 0; b.needed(); try++ {
		asked := time.Now()
		b.demand.OnAsk()
		err := b.look(ctx, try)
		if ctx.Err() != nil {
			return false
		}
		b.demand.OnAnswer(err)
		if err == nil {
			b.logged = ""
			b.log.Info().Stringer("address", b.at.Load()).Stringer("after", time.Since(begin).Round(time.Millisecond)).Msg("backend is ready")
			return true
		}
		if err.Error() != b.logged {
			b.logged = err.Error()
			b.log.Info().Err(err).Msg("the backend is not ready yet")
		}
		if !b.wanted() {
			b.rest(ctx, steadyPoll-time.Since(asked))
			begin = time.Now() // who comes now waits from now on
			continue
		}
		if !pause(ctx, pollAfter(time.Since(begin))-time.Since(asked)) {
			return false
		}
	}
	return false
}

// rest pauses until d is over, or somebody waits for the backend.
func (b *visitor) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for !b.wanted() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-b.demand.Changed:
		}
	}
}

// look asks once whether the backend can serve. An address that nobody answers at
// costs little, for the next try may find another.
func (b *visitor) look(ctx context.Context, try int) error {
	limited, cancel := context.WithTimeout(ctx, steadyPoll)
	defer cancel()
	list, err := b.resolve(limited)
	if err != nil {
		return err
	}
	b.at.Store(&list[try%len(list)])
	if err := b.health.check(limited); err != nil {
		return err
	}
	if len(b.cfg.Models) == 0 {
		if err := b.discover(limited); err != nil {
			return err
		}
		b.demand.OnModels(b.cfg.Models, b.cfg.Kinds)
	}
	if !b.cfg.warms() {
		return nil
	}
	long, end := context.WithTimeout(ctx, b.cfg.WakeTimeout)
	defer end()
	return b.warm(long)
}

// resolve gives the addresses that a router can send requests to.
func (b *visitor) resolve(ctx context.Context) ([]netip.AddrPort, error) {
	list, err := b.cfg.resolve(ctx, b.backend)
	if err != nil {
		return nil, err
	}
	var problem error
	list = slices.DeleteFunc(list, func(a netip.AddrPort) bool {
		err := agentreg.CheckAddress(a)
		if err != nil {
			problem = fmt.Errorf("%s is %s, which %w", b.backend.Hostname(), a, err)
		}
		return err != nil
	})
	if len(list) == 0 {
		return nil, problem
	}
	return list, nil
}

// visit keeps the backend in routing for as long as it is healthy and somebody needs
// it.
func (b *visitor) visit(ctx context.Context) {
	b.register(ctx, *b.at.Load(), serving)
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { b.watch(ctx) })
	look := time.NewTicker(steadyPoll)
	defer look.Stop()
	for needed := true; needed; {
		select {
		case <-ctx.Done():
			needed = false
		case <-b.sick:
			needed = false
		case <-look.C:
			needed = b.demand.InUse() || b.needed()
		}
	}
	b.core.set(asleep, false)
	stop()
	watching.Wait()
}

// register tells the router the backend's state. A router knows an agent by one
// address, so another one needs another link.
func (b *visitor) register(ctx context.Context, at netip.AddrPort, p phase) {
	select {
	case <-b.sick: // at an earlier visit
	default:
	}
	if b.core.address == at.String() {
		b.core.set(p, p == serving)
		return
	}
	b.leave()
	b.core.move(at.String(), p)
	ctx, cancel := context.WithCancel(ctx)
	var linked sync.WaitGroup
	linked.Go(func() {
		(&link{agent: b.agent, address: "self"}).run(ctx, func() bool { return false })
	})
	b.leave = func() {
		cancel()
		linked.Wait()
	}
}
