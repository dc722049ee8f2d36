// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

var (
	llama = target.Target{Model: "llama", Kind: target.Chat}
	embed = target.Target{Model: "llama", Kind: target.Embedding} // another kind of the same model
	qwen  = target.Target{Model: "qwen", Kind: target.Chat}
)

// wide are limits that no test reaches by accident.
var wide = Limits{PerModel: 1 << 20, PerKey: 1 << 20, Total: 1 << 20, Bytes: 1 << 40, QueueDepth: 1 << 20}

// fakeSlots is a registry of replicas that join and leave, each with slots.
type fakeSlots struct {
	mu       sync.Mutex
	replicas map[target.Target][]*fakeReplica
	taken    int // slots that were not given back
	failed   []string

	budgets map[target.Target]int // of the gate; none: no gate
	used    map[target.Target]int
	asked   int // how often Admit was called
	further int // how often a request may go on to further replicas
}

// weight is a claim of a rig's request that weighs so much in the gate; without a claim
// it weighs 1.
type weight int

func (weight) Admit(bool) (Reservation, error)      { panic("not bound to slots") }
func (weight) Take(Reservation) (Grant, TakeResult) { panic("not bound to slots") }
func (weight) Next() bool                           { panic("not bound to slots") }

// fakeClaim is a request's claim on fakeSlots.
type fakeClaim struct {
	*fakeSlots
	target target.Target
	weight int
}

// claiming binds the claim of r to s.
func (s *fakeSlots) claiming(r Request) Request {
	r.Claim = &fakeClaim{s, r.Target, weightOf(r)}
	return r
}

func weightOf(r Request) int {
	if n, ok := r.Claim.(weight); ok {
		return int(n)
	}
	return 1
}

var errTooLarge = errors.New("larger than the gate")

// fakeReservation is a reservation of the gate.
type fakeReservation struct {
	slots    *fakeSlots
	target   target.Target
	weight   int
	released bool
}

func (r *fakeReservation) Release() {
	r.slots.mu.Lock()
	defer r.slots.mu.Unlock()
	if !r.released {
		r.released = true
		r.slots.used[r.target] -= r.weight
	}
}

func (c *fakeClaim) Admit(behind bool) (Reservation, error) {
	s := c.fakeSlots
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	budget, gated := s.budgets[c.target]
	switch {
	case gated && c.weight > budget:
		return nil, errTooLarge
	case behind, gated && s.used[c.target]+c.weight > budget:
		return nil, nil
	}
	s.used[c.target] += c.weight
	return &fakeReservation{slots: s, target: c.target, weight: c.weight}, nil
}

func (s *fakeSlots) Next() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.further--
	return s.further >= 0
}

type fakeReplica struct {
	address string
	free    int
}

// fakeGrant is one taken slot.
type fakeGrant struct {
	slots    *fakeSlots
	replica  *fakeReplica
	reserved Reservation
	released bool
}

func newFakeSlots() *fakeSlots {
	return &fakeSlots{budgets: map[target.Target]int{}, used: map[target.Target]int{}}
}

func (s *fakeSlots) Serving(t target.Target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.replicas[t]) > 0
}

func (c *fakeClaim) Take(r Reservation) (Grant, TakeResult) {
	s := c.fakeSlots
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rep := range s.replicas[c.target] {
		if rep.free > 0 {
			rep.free--
			s.taken++
			return &fakeGrant{slots: s, replica: rep, reserved: r}, Taken
		}
	}
	return nil, Full
}

// add brings a replica into routing, without telling the machine.
func (s *fakeSlots) add(t target.Target, slots int) *fakeReplica {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &fakeReplica{address: "10.0.0.1:8000", free: slots}
	if s.replicas == nil {
		s.replicas = map[target.Target][]*fakeReplica{}
	}
	s.replicas[t] = append(s.replicas[t], r)
	return r
}

// drop takes a replica out of routing, without telling the machine.
func (s *fakeSlots) drop(t target.Target, r *fakeReplica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas[t] = slices.DeleteFunc(s.replicas[t], func(o *fakeReplica) bool { return o == r })
}

func (s *fakeSlots) takenNow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

func (g *fakeGrant) Replica() Replica { return Replica{Address: g.replica.address} }

func (*fakeGrant) CameBack() {}

func (g *fakeGrant) Failed(reason string, _ bool) {
	g.slots.mu.Lock()
	defer g.slots.mu.Unlock()
	g.slots.failed = append(g.slots.failed, reason)
}

func (g *fakeGrant) Release() {
	g.reserved.Release()
	g.slots.mu.Lock()
	defer g.slots.mu.Unlock()
	if !g.released {
		g.released = true
		g.slots.taken--
		g.replica.free++
	}
}

// rig is a machine with a fake registry and the memory of its callbacks.
type rig struct {
	*Machine
	slots  *fakeSlots
	atSite int // held requests as the site counts them; guarded by the machine's lock

	mu       sync.Mutex
	outcomes map[Outcome]int
	held     []time.Duration
	seen     map[string][]target.Need // what OnWanted found, per model
	woke     map[string][]time.Duration
	queued   []time.Duration
	refused  []error
}

func newRig(o Options) *rig {
	r := &rig{slots: newFakeSlots(), outcomes: map[Outcome]int{}, seen: map[string][]target.Need{}, woke: map[string][]time.Duration{}}
	o.Slots = r.slots
	o.OnOutcome = func(out Outcome, held time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outcomes[out]++
		r.held = append(r.held, held)
	}
	o.OnWanted = func(name string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen[name] = append(r.seen[name], r.Need(name))
	}
	o.OnWake = func(name string, took time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.woke[name] = append(r.woke[name], took)
	}
	o.OnQueued = func(_ string, waited time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queued = append(r.queued, waited)
	}
	o.OnRefused = func(_ string, why error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, why)
	}
	r.Machine = New(o)
	return r
}

// up registers a replica.
func (r *rig) up(t target.Target, slots int) *fakeReplica {
	replica := r.slots.add(t, slots)
	r.Update(t)
	return replica
}

// down removes a replica.
func (r *rig) down(t target.Target, replica *fakeReplica) {
	r.slots.drop(t, replica)
	r.Update(t)
}

// finish ends a granted waiter and gives its slot back.
func (r *rig) finish(w *Waiter) {
	w.Report(Done).Grant.Release()
	r.Update(w.request.Target)
}

// Hold binds the claim of the request to the rig's slots.
func (r *rig) Hold(req Request) (*Waiter, error) {
	req.SiteHold = &siteHold{n: &r.atSite}
	return r.Machine.Hold(r.slots.claiming(req))
}

// siteHold counts a request in n while it is held.
type siteHold struct {
	n      *int // guarded by the machine's lock
	joined bool
}

func (s *siteHold) Join() {
	if !s.joined {
		*s.n++
	}
	s.joined = true
}

func (s *siteHold) Leave() {
	if s.joined {
		*s.n--
	}
	s.joined = false
}

// Queue binds the claim of the request to the rig's slots.
func (r *rig) Queue(req Request) (*Waiter, error) { return r.Machine.Queue(r.slots.claiming(req)) }

func (r *rig) hold(t *testing.T, req Request) *Waiter {
	t.Helper()
	w, err := r.Hold(req)
	require.NoError(t, err)
	return w
}

func (r *rig) queue(t *testing.T, req Request) *Waiter {
	t.Helper()
	w, err := r.Queue(req)
	require.NoError(t, err)
	return w
}

func (r *rig) counted(o Outcome) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcomes[o]
}

// wanted is whether OnWanted found the model wanted, for each call that changed that.
func (r *rig) wanted(name string) []bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []bool
	for _, w := range r.seen[name] {
		if len(all) == 0 || all[len(all)-1] != w.Wanted() {
			all = append(all, w.Wanted())
		}
	}
	return all
}

// needs is what OnWanted found, call by call.
func (r *rig) needs(name string) []target.Need {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen[name])
}

// learned is what OnWake was called with.
func (r *rig) learned(name string) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.woke[name])
}

// requireAtRest requires an empty state, when no request waits and no linger or cooldown runs.
func (r *rig) requireAtRest(t require.TestingT) {
	r.Machine.mu.Lock()
	defer r.Machine.mu.Unlock()
	require.Zero(t, r.waiting.Load(), "waiting")
	require.Zero(t, r.waking.Load(), "waking")
	require.Zero(t, r.Machine.held, "held")
	require.Zero(t, r.atSite, "held as the site counts it")
	require.Zero(t, r.bytes, "bytes")
	require.Empty(t, r.bytesByModel, "bytes of models")
	require.Empty(t, r.models, "models")
	require.Empty(t, r.queues, "queues")
	require.Empty(t, r.after, "callbacks")
	require.Zero(t, r.slots.takenNow(), "slots")
	for target, used := range r.slots.used {
		require.Zero(t, used, "reserved for %v", target)
	}
}

func states(ws ...*Waiter) []State {
	all := make([]State, 0, len(ws))
	for _, w := range ws {
		all = append(all, w.Status().State)
	}
	return all
}

// pass lets d go by in a bubble, with everything that it causes.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
