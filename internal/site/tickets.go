// SPDX-License-Identifier: Apache-2.0

package site

import (
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/ticket"
)

// useScript stores that a router has accepted a ticket, unless another one has. It returns 1 if it
// is this router's. A call that the library makes twice has the same answer twice. Its key is that
// of the ticket, and its arguments are the router and the life of the key in ms.
var useScript = shared.NewScript("ticket", `
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return redis.call('GET', KEYS[1]) == ARGV[1] and 1 or 0
`)

// Tickets knows which tickets the routers of a site have accepted.
type Tickets struct{ c *shared.Client }

// NewTickets returns the tickets of a site.
func NewTickets(c *shared.Client) *Tickets { return &Tickets{c} }

// UsedElsewhere stores that this router accepts a ticket of the site. It returns true if another
// router has accepted it before. Without an answer of the server it returns false.
func (t *Tickets) UsedElsewhere(id string) bool {
	mine, err := useScript.Run(callContext(), t.c, []string{t.c.Spread("ticket", hashOf(id))},
		[]string{t.c.ID(), millis(ticket.Remembered)}).AsInt64()
	return err == nil && mine == 0
}
