// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
)

// Grant is a slot with the room that its request has, as the hold machine and the
// data path see it.
type Grant struct {
	*agentreg.Slot

	room holdstate.Reservation
	wish *Attempts
	step string // of the policy; empty: it has none
}

// Address is the replica's ip:port.
func (g *Grant) Address() string { return g.Agent().Address }

// Failed takes the replica out of routing, and counts the try. After a death the
// request is offered the replica again when its pause is over.
func (g *Grant) Failed(reason string, died bool) {
	if died {
		time.AfterFunc(g.wish.died(g.Address()), g.Changed)
	}
	g.wish.again = true
	if g.step != "" {
		if g.wish.tries == nil {
			g.wish.tries = map[string]int64{}
		}
		g.wish.tries[g.step]++
	}
	g.Slot.Failed(reason)
}

// Release gives the room back, and then the slot, which wakes those who wait.
func (g *Grant) Release() {
	g.room.Release()
	g.Slot.Release()
}
