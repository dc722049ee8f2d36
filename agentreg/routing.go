// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdgate/holdgate/internal/target"
)

// routing holds the replicas that requests can be sent to. A change costs no more than
// the targets of its replica, however many others there are. Its mutex is held for a
// map access alone; the rest works on atomic counters.
type routing struct {
	mu    sync.RWMutex
	pools map[target.Target]*pool // a pool never changes, it is replaced
}

// pool is one target's replicas in routing. The slice never changes.
type pool struct {
	replicas []*replica
	next     atomic.Uint32 // where the next search begins
}

// Filter chooses among the agents of a target.
type Filter interface {
	Fits(a *AgentInfo) bool
}

// Outcome is the result of TakeFrom.
type Outcome uint8

// The results of TakeFrom.
const (
	// Taken: the slot is the caller's, who must release it.
	Taken Outcome = iota
	// Full: replicas are in routing, and none has a free slot.
	Full
	// None: no replica that fits is in routing.
	None
)

// Capacity is what the replicas of a target could take at one moment.
type Capacity struct {
	// Replicas is the number of replicas in routing, Slots the number of slots that
	// this router may take on them, Free how many of these are free.
	Replicas int
	Slots    int64
	Free     int64
}

// of returns the replicas of t, nil for none.
func (r *routing) of(t target.Target) *pool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pools[t]
}

// publish adds rep to all of its targets, or takes it out of them.
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
		p := r.of(t)
		if p == nil {
			return nil, None
		}
		rep, count, o := p.pick(f)
		if o != Taken {
			return nil, o
		}
		// It fails after another take or a release, or when the replica left routing.
		if rep.gate.n.CompareAndSwap(count, count+1) {
			return rep, Taken
		}
	}
}

// pick finds the least loaded replica with a free slot, and its count; among equals
// they take turns. Without one the outcome is why. A nil Filter fits all.
func (p *pool) pick(f Filter) (best *replica, count int64, o Outcome) {
	o = None
	var least int64
	size := uint32(len(p.replicas)) //nolint:gosec // far below the limit
	start := p.next.Add(1)
	for i := range size {
		rep := p.replicas[(start+i)%size]
		n := rep.gate.n.Load()
		if n&closed != 0 || f != nil && !f.Fits(rep.info) {
			continue
		}
		free := rep.free(n)
		if free <= 0 {
			if best == nil {
				o = Full
			}
			continue
		}
		if load := rep.gate.load(free); best == nil || load < least {
			best, count, least, o = rep, n, load, Taken
		}
	}
	return best, count, o
}

// capacity adds up the replicas of t that fit; a nil Filter fits all.
func (r *routing) capacity(t target.Target, f Filter) (c Capacity) {
	p := r.of(t)
	if p == nil {
		return c
	}
	for _, rep := range p.replicas {
		if f != nil && !f.Fits(rep.info) {
			continue
		}
		g := &rep.gate
		c.Replicas++
		c.Slots += g.share.Load()
		if n := g.n.Load(); n&closed == 0 {
			c.Free += max(0, rep.free(n))
		}
	}
	return c
}
