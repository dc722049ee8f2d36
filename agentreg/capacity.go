// SPDX-License-Identifier: Apache-2.0

package agentreg

import "github.com/holdgate/holdgate/sitemap"

// Capacity is what the replicas of a target could take at one moment.
type Capacity struct {
	// Replicas are those in routing, Slots all they have, Free those that Take
	// could give.
	Replicas int
	Slots    int64
	Free     int64
}

// Capacity looks at the replicas of t and takes nothing.
func (r *Registry) Capacity(t sitemap.Target) Capacity {
	p := (*r.routing.Load())[t]
	if p == nil {
		return Capacity{}
	}
	c := Capacity{Replicas: len(p.replicas)}
	for _, rep := range p.replicas {
		g := &rep.gate
		c.Slots += g.slots
		if n := g.n.Load(); n&closed == 0 {
			c.Free += max(0, g.slots-n-g.others.Load())
		}
	}
	return c
}
