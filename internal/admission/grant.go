// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
)

// Grant is a slot together with its request's reservation. It is a holdstate.Grant.
type Grant struct {
	*agentreg.Slot

	reservation holdstate.Reservation
	attempts    *Attempts
	step        string // of the policy; empty: it has none
}

// Replica is part of holdstate.Grant.
func (g *Grant) Replica() holdstate.Replica {
	a := g.Agent()
	return holdstate.Replica{ID: a.ID, Engine: a.Engine, Region: a.Region, Address: a.Address}
}

// Failed takes the replica out of routing, and counts the try. After a death the
// request is offered the replica again when its pause is over.
func (g *Grant) Failed(reason string, died bool) {
	if died {
		time.AfterFunc(g.attempts.died(g.Agent().Address), g.Changed)
	}
	g.attempts.again = true
	if g.step != "" {
		if g.attempts.tries == nil {
			g.attempts.tries = map[string]int64{}
		}
		g.attempts.tries[g.step]++
	}
	g.Slot.Failed(reason)
}

// Release gives back the reservation, and then the slot, which updates the waiters.
func (g *Grant) Release() {
	g.reservation.Release()
	g.Slot.Release()
}
