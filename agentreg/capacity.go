// SPDX-License-Identifier: Apache-2.0

package agentreg

import "github.com/holdgate/holdgate/internal/target"

// Capacity is what the replicas of a target could take at one moment.
type Capacity struct {
	// Replicas are those in routing, Slots what they have for this router, Free those
	// that TakeFrom could give.
	Replicas int
	Slots    int64
	Free     int64
}

// Capacity looks at the replicas of t and takes nothing.
func (r *Registry) Capacity(t target.Target) Capacity { return r.CapacityFrom(t, nil) }

// CapacityFrom is Capacity of the replicas that fit.
func (r *Registry) CapacityFrom(t target.Target, f Filter) Capacity {
	p := r.routing.of(t)
	if p == nil {
		return Capacity{}
	}
	var c Capacity
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
