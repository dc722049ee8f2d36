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

// Demand is how RunBackend learns whether a backend is needed, and what it reports.
type Demand struct {
	// Wanted reports whether one of the models is wanted.
	Wanted func(models []string) bool
	// Used reports whether a replica of one of the models, of this backend or not, has
	// requests, or had some a moment ago.
	Used func(models []string) bool
	// InUse reports whether the agent with this id has requests, or had some a moment ago.
	InUse func(id string) bool
	// Changed has a token when Wanted may have changed.
	Changed <-chan struct{}
	// OnModels is called with what the backend lists, when the Config has no models.
	OnModels func(models, kinds []string)
	// OnCheck and OnResult are called before and after checks of a backend that is not
	// in routing; the error is why it cannot serve. OnIdle is called when it is no
	// longer checked.
	OnCheck  func()
	OnResult func(err error)
	OnIdle   func()
}

// ReplicaMark stands in the ids of the addresses of a backend but the first, before
// their number.
const ReplicaMark = "#"

// MaxReplicas bounds the addresses of one backend that get requests.
const MaxReplicas = 256

// maxMissed is how many lookups in a row must lack the address of a member that is up
// before it leaves: name servers return some of many addresses at a time.
const maxMissed = 5

// RunBackend runs the agents of a backend, which has none of its own, inside of the
// router that dial connects to, until ctx ends. The backend is checked only while one of
// its models is wanted or used, and reported asleep otherwise. Each address of its name
// has an agent: the first has the id of cfg, the next ones have a number after it.
// Without models the engine is first asked for them. Routers and what is for Exec do not
// count in cfg.
func RunBackend(ctx context.Context, cfg Config, d Demand, dial func() (net.Conn, error)) error {
	backend, err := parseRemote(cfg.BackendURL)
	if err != nil {
		return fmt.Errorf("backend %s: url: %w", cfg.ID, err)
	}
	cfg.dial = func(string) (net.Conn, error) { return dial() }
	f := &fleet{cfg: cfg.withDefaults(), demand: d, backend: backend, lost: make(chan struct{}, 1)}
	f.run(ctx)
	return nil
}

// fleet is a backend: a member for each address of its name.
type fleet struct {
	cfg     Config
	demand  Demand
	backend *url.URL
	lost    chan struct{} // has a token when a member left routing
	running sync.WaitGroup

	members []*member // for run alone
	logged  string    // the problem with the name that was last logged; for run alone

	mu     sync.Mutex
	models []string // those of cfg, or those that the backend lists
	kinds  []string
}

// run looks up the name, wakes the members to check, and adds those that are missing.
func (f *fleet) run(ctx context.Context) {
	defer f.running.Wait()
	f.models, f.kinds = f.cfg.Models, f.cfg.Kinds
	if len(f.models) > 0 { // so that the registry has its agent from the beginning
		_ = f.assign(ctx, 0)
	}
	for ctx.Err() == nil {
		f.awaitNeed(ctx)
		begin := time.Now()
		for try := 0; ctx.Err() == nil && (f.needed() || f.up()); try++ {
			checked := time.Now()
			f.checkAll(ctx, try)
			if f.up() || !f.wanted() {
				f.rest(ctx, steadyPoll-time.Since(checked))
				begin, try = time.Now(), -1 // a request that comes now waits from now on
				continue
			}
			pause(ctx, pollAfter(time.Since(begin))-time.Since(checked))
		}
	}
}

// serves returns the models and kinds, none before the backend has listed them.
func (f *fleet) serves() (models, kinds []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.models, f.kinds
}

// setServes notes the models and kinds that the backend lists.
func (f *fleet) setServes(models, kinds []string) {
	f.mu.Lock()
	f.models, f.kinds = models, kinds
	f.mu.Unlock()
	f.demand.OnModels(models, kinds)
}

// wanted reports whether a model of the backend is wanted. A backend whose models are not
// known is wanted so that it lists them.
func (f *fleet) wanted() bool {
	models, _ := f.serves()
	return len(models) == 0 || f.demand.Wanted(models)
}

// needed reports whether the backend is to be checked: also while another replica
// serves its models, so that it is up when that one fails.
func (f *fleet) needed() bool {
	models, _ := f.serves()
	return f.wanted() || f.demand.Used(models)
}

// up reports whether an address is in routing.
func (f *fleet) up() bool {
	return slices.ContainsFunc(f.members, func(m *member) bool { return m.result.Load() == up })
}

// awaitNeed waits until the backend is needed.
func (f *fleet) awaitNeed(ctx context.Context) {
	tick := time.NewTicker(steadyPoll)
	defer tick.Stop()
	for !f.needed() {
		f.demand.OnIdle()
		select {
		case <-ctx.Done():
			return
		case <-f.demand.Changed:
		case <-tick.C: // Changed has no token when a model is used
		}
	}
}

// rest pauses for d, or until the backend is wanted and does not serve.
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
		case <-f.lost:
		}
	}
}

// checkAll wakes every member whose address is not in routing, so that it checks.
func (f *fleet) checkAll(ctx context.Context, try int) {
	if err := f.assign(ctx, try); err != nil {
		f.lookupFailed(err)
		return
	}
	for _, m := range f.members {
		if m.address.Load() != nil && m.result.Load() != up {
			notify(m.due)
		}
	}
}

// lookupFailed reports that the name has no address.
func (f *fleet) lookupFailed(err error) {
	if f.up() {
		return
	}
	if err.Error() != f.logged {
		f.logged = err.Error()
		f.cfg.Log.Info().Str("agent", f.cfg.ID).Err(err).Msg("the backend is not ready yet")
	}
	f.demand.OnCheck()
	f.demand.OnResult(err)
}

// checked reports the result of a member's check: that the backend can serve, or, once
// every address is down, that it cannot.
func (f *fleet) checked(all []*member, err error) {
	if err != nil && slices.ContainsFunc(all, func(m *member) bool { return m.address.Load() != nil && m.result.Load() != down }) {
		return
	}
	f.demand.OnResult(err)
}

// assign gives each address a member, and takes it from those whose address is gone.
// A member keeps its address otherwise.
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
	for _, m := range f.members {
		address := m.address.Load()
		switch {
		case address == nil:
		case slices.Contains(list, *address):
			list = slices.DeleteFunc(list, func(a netip.AddrPort) bool { return a == *address })
			m.missed = 0
		case m.result.Load() == up && m.missed < maxMissed:
			m.missed++
		default:
			m.setAddress(nil)
		}
	}
	for _, address := range list {
		f.giveMember(ctx, &address)
	}
	return nil
}

// giveMember gives an address to a member without one, a new one if need be. A new one
// starts with its address, so that it registers at once.
func (f *fleet) giveMember(ctx context.Context, address *netip.AddrPort) {
	for _, m := range f.members {
		if m.address.Load() == nil {
			m.setAddress(address)
			return
		}
	}
	m := newMember(f, len(f.members))
	f.members = append(f.members, m)
	all := slices.Clone(f.members)
	for _, other := range all {
		other.all.Store(&all)
	}
	m.setAddress(address)
	f.running.Go(func() { m.run(ctx) })
}

// choose returns the addresses that are replicas. IPv4 and IPv6 may lead to the same
// engine, and so do all addresses of a pool: of such sets it takes one, the next one
// with each try, as long as none is up.
func (f *fleet) choose(list []netip.AddrPort, try int) []netip.AddrPort {
	var sets [][]netip.AddrPort
	for _, address := range list {
		last := len(sets) - 1
		if models, _ := f.serves(); last >= 0 && !f.cfg.Pool && len(models) > 0 && sets[last][0].Addr().Is4() == address.Addr().Is4() {
			sets[last] = append(sets[last], address)
			continue
		}
		sets = append(sets, []netip.AddrPort{address})
	}
	for _, set := range sets {
		for _, m := range f.members {
			if address := m.address.Load(); address != nil && m.result.Load() == up && slices.Contains(set, *address) {
				return set
			}
		}
	}
	set := sets[try%len(sets)]
	return set[:min(len(set), MaxReplicas)]
}

// resolve returns the addresses that a router can send requests to, IPv4 first.
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
