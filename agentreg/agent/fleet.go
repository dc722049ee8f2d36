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

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// Demand is what a router knows of who needs a backend.
type Demand struct {
	// Wanted says whether somebody waits for one of the models.
	Wanted func(models []string) bool
	// Used says whether a replica of one of the models, this or another one, has
	// requests, or had some a moment ago.
	Used func(models []string) bool
	// InUse says whether the agent with this id has requests, or had some a moment ago.
	InUse func(id string) bool
	// Changed has a token when Wanted may have changed.
	Changed <-chan struct{}
	// OnModels hears what the backend named, when the Config has no models.
	OnModels func(models, kinds []string)
	// OnAsk and OnAnswer frame the questions of whether the backend can serve, while it
	// is not in routing; the error says why it cannot. OnIdle says that it is not asked
	// any more.
	OnAsk    func()
	OnAnswer func(err error)
	OnIdle   func()
}

// ReplicaMark stands in the ids of the addresses of a backend but the first, before
// their number.
const ReplicaMark = "#"

// MaxReplicas bounds the addresses of one backend that get requests.
const MaxReplicas = 256

// lookupsMissed is how many lookups in a row must lack the address of a replica that
// answers before it leaves: name servers give some of many addresses at a time.
const lookupsMissed = 5

// RunBackend stands for an engine that runs elsewhere and has no agent, inside of
// its only router, which dial connects to, until ctx ends. It asks the engine only
// while somebody waits for its models or uses them, and is asleep otherwise, whatever
// the engine is. Each address of its name is an agent of its own: the first has the id
// of cfg, the next ones have a number after it. Without models the engine is first
// asked for them. Of cfg neither Routers nor anything that is for Exec counts.
func RunBackend(ctx context.Context, cfg Config, d Demand, dial func() (net.Conn, error)) error {
	backend, err := parseElsewhere(cfg.BackendURL)
	if err != nil {
		return fmt.Errorf("backend %s: url: %w", cfg.ID, err)
	}
	cfg.dial = func(string) (net.Conn, error) { return dial() }
	f := &fleet{cfg: cfg.withDefaults(), demand: d, backend: backend, down: make(chan struct{}, 1)}
	f.run(ctx)
	return nil
}

// fleet is the replicas of a backend: one for each address of its name.
type fleet struct {
	cfg     Config
	demand  Demand
	backend *url.URL
	down    chan struct{}  // a replica has left routing
	running sync.WaitGroup // the visitors

	visitors []*visitor // of run alone
	logged   string     // the problem with the name that was last logged; of run alone

	mu     sync.Mutex
	models []string // those of cfg, or that the backend named
	kinds  []string
}

// run looks up the name, has the visitors ask, and starts those that are missing.
func (f *fleet) run(ctx context.Context) {
	defer f.running.Wait()
	f.models, f.kinds = f.cfg.Models, f.cfg.Kinds
	if len(f.models) > 0 { // so that who looks finds its agent
		_ = f.assign(ctx, 0)
	}
	for ctx.Err() == nil {
		f.idle(ctx)
		begin := time.Now()
		for try := 0; ctx.Err() == nil && (f.needed() || f.up()); try++ {
			asked := time.Now()
			f.ask(ctx, try)
			if f.up() || !f.wanted() {
				f.rest(ctx, steadyPoll-time.Since(asked))
				begin, try = time.Now(), -1 // who comes now waits from now on
				continue
			}
			pause(ctx, pollAfter(time.Since(begin))-time.Since(asked))
		}
	}
}

// known are the models and kinds, none before the backend has named them.
func (f *fleet) known() (models, kinds []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.models, f.kinds
}

// wanted says whether somebody waits for the backend. One whose models are not known
// is wanted for them.
func (f *fleet) wanted() bool {
	models, _ := f.known()
	return len(models) == 0 || f.demand.Wanted(models)
}

// needed says whether the backend is to be looked at: also while another replica
// serves what it has, so that it is there when that one fails.
func (f *fleet) needed() bool {
	models, _ := f.known()
	return f.wanted() || f.demand.Used(models)
}

// up says whether an address is in routing.
func (f *fleet) up() bool {
	return slices.ContainsFunc(f.visitors, func(v *visitor) bool { return v.said.Load() == isUp })
}

// idle waits until the backend is needed.
func (f *fleet) idle(ctx context.Context) {
	look := time.NewTicker(steadyPoll)
	defer look.Stop()
	for !f.needed() {
		f.demand.OnIdle()
		select {
		case <-ctx.Done():
			return
		case <-f.demand.Changed:
		case <-look.C: // nobody tells when a model is used
		}
	}
}

// rest pauses until d is over, or somebody waits for a backend that does not serve.
func (f *fleet) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for f.up() || !f.wanted() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-f.demand.Changed:
		case <-f.down:
		}
	}
}

// ask has every address that is not in routing asked whether it can serve.
func (f *fleet) ask(ctx context.Context, try int) {
	if err := f.assign(ctx, try); err != nil {
		f.unknown(err)
		return
	}
	for _, v := range f.visitors {
		if v.to.Load() != nil && v.said.Load() != isUp {
			poke(v.turn)
		}
	}
}

// unknown is for a name that stands for no address.
func (f *fleet) unknown(err error) {
	if f.up() {
		return
	}
	if err.Error() != f.logged {
		f.logged = err.Error()
		f.cfg.Log.Info().Str("agent", f.cfg.ID).Err(err).Msg("the backend is not ready yet")
	}
	f.demand.OnAsk()
	f.demand.OnAnswer(err)
}

// answered tells of a backend that can serve, or cannot: when every address has said
// so.
func (f *fleet) answered(all []*visitor, err error) {
	if err != nil && slices.ContainsFunc(all, func(v *visitor) bool { return v.to.Load() != nil && v.said.Load() != isDown }) {
		return
	}
	f.demand.OnAnswer(err)
}

// assign gives each address a visitor, and takes it from those whose address is gone.
// Whoever has an address keeps it.
func (f *fleet) assign(ctx context.Context, try int) error {
	if f.cfg.Pool && f.up() { // the others would lead to the same engines
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, steadyPoll)
	defer cancel()
	list, err := f.resolve(limited)
	if err != nil {
		return err
	}
	list = f.choose(list, try)
	for _, v := range f.visitors {
		to := v.to.Load()
		switch {
		case to == nil:
		case slices.Contains(list, *to):
			list = slices.DeleteFunc(list, func(a netip.AddrPort) bool { return a == *to })
			v.missed = 0
		case v.said.Load() == isUp && v.missed < lookupsMissed:
			v.missed++
		default:
			v.send(nil)
		}
	}
	for _, at := range list {
		f.free(ctx).send(&at)
	}
	return nil
}

// free is a visitor without an address, a new one if need be.
func (f *fleet) free(ctx context.Context) *visitor {
	for _, v := range f.visitors {
		if v.to.Load() == nil {
			return v
		}
	}
	v := newVisitor(f, len(f.visitors))
	f.visitors = append(f.visitors, v)
	all := slices.Clone(f.visitors)
	for _, other := range all {
		other.all.Store(&all)
	}
	f.running.Go(func() { v.run(ctx) })
	return v
}

// choose gives the addresses that are replicas. IPv4 and IPv6 may lead to the same
// engine, and so do all addresses of a pool: of these it takes one kind, the next one
// with each try, as long as none is up.
func (f *fleet) choose(list []netip.AddrPort, try int) []netip.AddrPort {
	var kinds [][]netip.AddrPort
	for _, at := range list {
		last := len(kinds) - 1
		if models, _ := f.known(); last >= 0 && !f.cfg.Pool && len(models) > 0 && kinds[last][0].Addr().Is4() == at.Addr().Is4() {
			kinds[last] = append(kinds[last], at)
			continue
		}
		kinds = append(kinds, []netip.AddrPort{at})
	}
	for _, kind := range kinds {
		for _, v := range f.visitors {
			if to := v.to.Load(); to != nil && v.said.Load() == isUp && slices.Contains(kind, *to) {
				return kind
			}
		}
	}
	kind := kinds[try%len(kinds)]
	return kind[:min(len(kind), MaxReplicas)]
}

// resolve gives the addresses that a router can send requests to, IPv4 first.
func (f *fleet) resolve(ctx context.Context) ([]netip.AddrPort, error) {
	list, err := f.cfg.resolve(ctx, f.backend)
	if err != nil {
		return nil, err
	}
	var problem error
	list = slices.DeleteFunc(list, func(a netip.AddrPort) bool {
		err := protocol.CheckAddress(a)
		if err != nil {
			problem = fmt.Errorf("%s is %s, which %w", f.backend.Hostname(), a, err)
		}
		return err != nil
	})
	if len(list) == 0 {
		return nil, problem
	}
	return list, nil
}
