// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdgate/holdgate/internal/target"
)

// routing holds the replicas that requests can be sent to. The cost of a change depends
// only on the targets of its replica. The mutex is held only to read or replace entries of
// the map; everything else uses atomic counters.
type routing struct {
	mu    sync.RWMutex
	pools map[target.Target]*pool // pools are replaced, not changed
}

// pool is one target's replicas in routing. The slice never changes.
type pool struct {
	replicas []*replica
	next     atomic.Uint32 // where the next search begins
}

// Filter selects agents of a target.
type Filter interface {
	Fits(a *AgentInfo) bool
}

// Outcome is the result of TakeFrom.
type Outcome uint8

// The results of TakeFrom.
const (
	// Taken: a slot was taken, which the caller must release.
	Taken Outcome = iota
	// Full: replicas that fit are in routing, but none has a free slot.
	Full
	// None: no replica that fits is in routing.
	None
)

// Capacity is how many requests the replicas of a target can take at one moment.
type Capacity struct {
	// Replicas is the number of replicas in routing, Slots this router's share of their
	// slots, and Free the number of slots that it can take now.
	Replicas int
	Slots    int64
	Free     int64
}

// poolOf returns the pool of t, nil if there is none.
func (r *routing) poolOf(t target.Target) *pool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pools[t]
}

// publish adds rep to the pools of all its targets, or removes it from them.
func (r *routing) publish(rep *replica, in bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range rep.targets {
		var replicas []*replica
		if p := r.pools[t]; p != nil {
			replicas = slices.DeleteFunc(slices.Clone(p.replicas), func(x *replica) bool { return x == rep })
		}
		if in {
			replicas = append(replicas, rep)
		}
		if len(replicas) == 0 {
			delete(r.pools, t)
			continue
		}
		r.pools[t] = &pool{replicas: replicas}
	}
}

// take takes a slot on the least loaded of the replicas of t that fit. The replica is
// nil unless the outcome is Taken.
func (r *routing) take(t target.Target, f Filter) (*replica, Outcome) {
	for {
		p := r.poolOf(t)
		if p == nil {
			return nil, None
		}
		rep, w, o := p.pick(f)
		if o != Taken {
			return nil, o
		}
		// This fails if a slot was taken or released, the share has changed, or the replica left
		// routing, meanwhile.
		if rep.gate.state.CompareAndSwap(uint64(w), uint64(w)+1) {
			return rep, Taken
		}
	}
}

// pick returns the least loaded replica that fits and has a free slot, and the state of its
// gate. Replicas with equal load are picked in turn. If there is none, o is Full or None. A
// nil Filter fits all.
func (p *pool) pick(f Filter) (best *replica, state word, o Outcome) {
	o = None
	var least int64
	size := uint32(len(p.replicas)) //nolint:gosec // far below the limit
	start := p.next.Add(1)
	for i := range size {
		rep := p.replicas[(start+i)%size]
		w := rep.gate.load()
		if w.closed() || f != nil && !f.Fits(rep.info) {
			continue
		}
		free := rep.free(w)
		if free <= 0 {
			if best == nil {
				o = Full
			}
			continue
		}
		if load := rep.gate.loadOf(w.share(), free); best == nil || load < least {
			best, state, least, o = rep, w, load, Taken
		}
	}
	return best, state, o
}

// least returns the addresses of at most n replicas that fit, the least loaded first, without
// address not.
func (p *pool) least(f Filter, n int, not string) []string {
	addresses, loads := make([]string, 0, n+1), make([]int64, 0, n+1)
	for _, rep := range p.replicas {
		w, address := rep.gate.load(), rep.info.Address
		if w.closed() || address == not || slices.Contains(addresses, address) || f != nil && !f.Fits(rep.info) {
			continue
		}
		load := full
		if free := rep.free(w); free > 0 {
			load = rep.gate.loadOf(w.share(), free)
		}
		at := 0
		for at < len(loads) && loads[at] <= load {
			at++
		}
		addresses, loads = slices.Insert(addresses, at, address), slices.Insert(loads, at, load)
		addresses, loads = addresses[:min(n, len(addresses))], loads[:min(n, len(loads))]
	}
	return addresses
}

// capacity returns the total of the replicas of t that fit; a nil Filter fits all.
func (r *routing) capacity(t target.Target, f Filter) (c Capacity) {
	p := r.poolOf(t)
	if p == nil {
		return c
	}
	for _, rep := range p.replicas {
		if f != nil && !f.Fits(rep.info) {
			continue
		}
		w := rep.gate.load()
		c.Replicas++
		c.Slots += w.share()
		if !w.closed() {
			c.Free += max(0, rep.free(w))
		}
	}
	return c
}
