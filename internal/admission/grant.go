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
	step        string // of the policy; empty: it has no steps
}

// Replica is part of holdstate.Grant.
func (g *Grant) Replica() holdstate.Replica {
	a := g.Agent()
	return holdstate.Replica{ID: a.ID, Engine: a.Engine, Region: a.Region, Address: a.Address}
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
