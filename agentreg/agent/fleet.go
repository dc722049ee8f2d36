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

// Demand has the callbacks by which RunBackend finds out whether a backend is needed, and
// reports its state.
type Demand struct {
	// Wanted reports whether one of the models is wanted.
	Wanted func(models []string) bool
	// Used reports whether a replica of one of the models, in this backend or elsewhere,
	// has requests or recently had some.
	Used func(models []string) bool
	// InUse reports whether the agent with this id has requests or recently had some.
	InUse func(id string) bool
	// Changed receives a token when the result of Wanted may have changed.
	Changed <-chan struct{}
	// OnModels is called with the models and kinds that the backend lists, if the Config
	// has no models.
	OnModels func(models, kinds []string)
	// OnCheck and OnResult are called before and after checks of a backend that is not
	// in routing; the error is why it cannot serve. OnIdle is called when it is no
	// longer checked.
	OnCheck  func()
	OnResult func(err error)
	OnIdle   func()
}

// ReplicaMark separates the id of a backend and the number of its address, in the ids of the
// agents of all addresses but the first.
const ReplicaMark = "#"

// MaxReplicas is the largest number of addresses of one backend that get requests.
const MaxReplicas = 256

// maxMissed is how many lookups in a row may lack the address of a member that is up before
// it leaves: a name server may return only some of many addresses at a time.
const maxMissed = 5

// RunBackend runs the agents of a backend, an engine without an agent next to it, inside of
// the router that dial connects to, until ctx ends. The backend is checked only while one of
// its models is wanted or used, and reported asleep otherwise. Each address of its name has
// an agent: the first has the id of cfg, the next ones have a number after it. If cfg has no
// models, those that the engine lists are used. Routers and the fields for Exec are ignored.
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

// fleet is one backend: it has a member for each address of the backend's name.
type fleet struct {
	cfg     Config
	demand  Demand
	backend *url.URL
	lost    chan struct{} // receives a token when a member leaves routing
	running sync.WaitGroup

	members []*member // used only by the goroutine of run
	logged  string    // the lookup error that was last logged; empty: the last lookup has succeeded; used only by run
	crowded bool      // the name had more than MaxReplicas addresses at the last lookup; used only by run

	mu     sync.Mutex
	models []string // of cfg, or as the backend lists them
	kinds  []string
}

// run looks up the name, adds members for new addresses, and makes the members check theirs,
// whenever the backend is needed, until ctx ends.
func (f *fleet) run(ctx context.Context) {
	defer f.running.Wait()
	f.models, f.kinds = f.cfg.Models, f.cfg.Kinds
	if len(f.models) > 0 { // so that its agent is registered from the beginning
		_ = f.assignAddresses(ctx, 0)
	}
	for ctx.Err() == nil {
		f.awaitNeed(ctx)
		begin := time.Now()
		for try := 0; ctx.Err() == nil && (f.needed() || f.up()); try++ {
			checked := time.Now()
			f.checkAll(ctx, try)
			if f.up() || !f.wanted() {
				f.awaitNextCheck(ctx, steadyPoll-time.Since(checked))
				begin, try = time.Now(), -1 // checks begin again with the first try and the shortest pause
				continue
			}
			pause(ctx, pollAfter(time.Since(begin))-time.Since(checked))
		}
	}
}

// serves returns the models and kinds. There are none before the backend has listed them,
// if they are not configured.
func (f *fleet) serves() (models, kinds []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.models, f.kinds
}

// setServes sets the models and kinds that the backend lists.
func (f *fleet) setServes(models, kinds []string) {
	f.mu.Lock()
	f.models, f.kinds = models, kinds
	f.mu.Unlock()
	f.demand.OnModels(models, kinds)
}

// wanted reports whether a model of the backend is wanted. A backend whose models are not
// known is always wanted, so that they are read.
func (f *fleet) wanted() bool {
	models, _ := f.serves()
	return len(models) == 0 || f.demand.Wanted(models)
}

// needed reports whether the backend must be checked. It is also checked while other
// replicas serve its models, so that it is up when one of them fails.
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

// awaitNextCheck waits for d, or until the backend is wanted and no address is in routing.
func (f *fleet) awaitNextCheck(ctx context.Context, d time.Duration) {
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

// checkAll makes every member whose address is not in routing check it.
func (f *fleet) checkAll(ctx context.Context, try int) {
	if err := f.assignAddresses(ctx, try); err != nil {
		f.lookupFailed(err)
		return
	}
	for _, m := range f.members {
		if m.address.Load() != nil && m.result.Load() != up {
			notify(m.due)
		}
	}
}

// lookupFailed reports that the name could not be resolved. It is no failed check while an address
// is up.
func (f *fleet) lookupFailed(err error) {
	first := err.Error() != f.logged
	f.logged = err.Error()
	if f.up() {
		if first {
			f.cfg.Log.Warn().Str("agent", f.cfg.ID).Err(err).Msg("the name of the backend cannot be looked up, the addresses that are known stay in use")
		}
		return
	}
	if first {
		f.cfg.Log.Info().Str("agent", f.cfg.ID).Err(err).Msg("the backend is not ready yet")
	}
	f.demand.OnCheck()
	f.demand.OnResult(err)
}

// report reports the result of one member's check: a success at once, a failure only if
// every address is down.
func (f *fleet) report(all []*member, err error) {
	if err != nil && slices.ContainsFunc(all, func(m *member) bool { return m.address.Load() != nil && m.result.Load() != down }) {
		return
	}
	f.demand.OnResult(err)
}

// assignAddresses looks up the name, and assigns each new address to a member. Members whose
// address is no longer there lose it; all others keep theirs.
func (f *fleet) assignAddresses(ctx context.Context, try int) error {
	if f.cfg.Pool && f.up() { // the others would lead to the same engines
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, steadyPoll)
	defer cancel()
	list, err := f.resolve(limited)
	if err != nil {
		return err
	}
	f.logged = ""
	list = f.limit(f.chooseReplicas(list, try))
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
		f.addAddress(ctx, &address)
	}
	return nil
}

// limit returns at most MaxReplicas of the addresses, those of members first.
func (f *fleet) limit(list []netip.AddrPort) []netip.AddrPort {
	crowded := len(list) > MaxReplicas
	if crowded && !f.crowded {
		f.cfg.Log.Warn().Str("agent", f.cfg.ID).Int("addresses", len(list)).Int("used", MaxReplicas).Msg("the name of the backend has more addresses than are used")
	}
	f.crowded = crowded
	if !crowded {
		return list
	}
	known := map[netip.AddrPort]bool{}
	for _, m := range f.members {
		if address := m.address.Load(); address != nil {
			known[*address] = true
		}
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b netip.AddrPort) int { return rank(known[a]) - rank(known[b]) })
	return list[:MaxReplicas]
}

// rank returns 0 for what comes first.
func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// addAddress assigns an address to a member without one, or to a new member, which registers
// at once.
func (f *fleet) addAddress(ctx context.Context, address *netip.AddrPort) {
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

// chooseReplicas returns the addresses to use as replicas. An IPv4 and an IPv6 address may
// lead to the same engine, and all addresses of a pool do. It divides the list into sets of
// addresses that lead to different engines, and returns the set with an address that is up,
// or another set at each try while none is.
func (f *fleet) chooseReplicas(list []netip.AddrPort, try int) []netip.AddrPort {
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
	return sets[try%len(sets)]
}

// resolve returns the valid addresses of the backend, IPv4 first.
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
