// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/policy"
)

// Grant is a slot together with its request's reservation. It is a holdstate.Grant.
type Grant struct {
	*agentreg.Slot

	reservation holdstate.Reservation
	attempts    *Attempts
	step        string // of the policy; empty: it has no steps
}

// Replica is part of holdstate.Grant.
func (g *Grant) Replica() holdstate.Replica {
	a := g.Agent()
	return holdstate.Replica{ID: a.ID, Engine: a.Engine, Region: a.Region, Address: a.Address}
}

// Picked returns at most n addresses: that of the grant, and those of other replicas that the
// request may be sent to, in the order in which they are to be tried.
func (g *Grant) Picked(n int) []string {
	a := g.attempts
	picked := append(make([]string, 0, n), g.Agent().Address)
	add := func(match *policy.Match) {
		if len(picked) == n {
			return
		}
		for _, address := range g.Others(a.Target, a.filter(match), n) {
			if len(picked) < n && !slices.Contains(picked, address) {
				picked = append(picked, address)
			}
		}
	}
	steps := a.policy().Steps
	if len(steps) == 0 {
		add(nil)
	}
	for i := range steps {
		if !a.usedUp(&steps[i]) {
			add(&steps[i].Match)
		}
	}
	return picked
}

// Failed is part of holdstate.Grant. After a death it has the waiters updated when the pause
// ends.
func (g *Grant) Failed(reason string, died bool) {
	if died {
		time.AfterFunc(g.attempts.died(g.Agent().Address), g.Changed)
	}
	g.attempts.failed(g.step)
	g.Slot.Failed(reason)
}

// Release is part of holdstate.Grant. It releases the reservation first, because the release
// of the slot updates the waiters, which may need the reservation.
func (g *Grant) Release() {
	g.reservation.Release()
	g.Slot.Release()
}
