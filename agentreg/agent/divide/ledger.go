// SPDX-License-Identifier: Apache-2.0

package divide

import (
	"slices"
	"time"
)

// Ledger has the shares of all routers of an agent.
type Ledger struct {
	slots   int
	routers []*Router // in the order in which they came
	turn    int       // which router comes first when there are fewer slots than routers that wait
	frozen  []part    // of routers whose streams ended
	lastTwo time.Time // when two routers were last connected at once
	looks   looks
}

// New returns the ledger of an agent that has no routers yet.
func New(slots int) *Ledger { return &Ledger{slots: slots, looks: newLooks()} }

// Router is one stream to a router.
type Router struct {
	id       string // empty until Welcome
	silent   bool   // it sends no Usage
	passive  bool   // the router has another stream, which it seems to use
	news     bool   // it must get an offer
	share    int    // by the division
	number   uint64 // of the last offer
	said     int    // the share of the last offer
	open     []offer
	returned int   // what it keeps by its last Usage
	quiet    quiet // of another stream of the router
	usage    Usage // the last one
	sample   sample
}

// quiet is when a router sends no more requests by the share of another stream, at the latest,
// unless it acknowledges an offer of this one before.
type quiet struct {
	from  time.Time
	offer uint64
}

// offer is a share that was said to a router and that it has not acknowledged.
type offer struct {
	number uint64
	share  int
}

// Usage is what a router says about its use of the slots.
type Usage struct {
	Offer    uint64 // the last offer that it has taken into account
	Kept     int    // what it may use until it takes another offer into account
	Taken    int    // slots that its requests use
	Waiting  int    // requests that wait for a slot
	Released uint64 // how many slots it has released so far
}

// Join adds a stream whose router has not answered yet. If it is the only one, its share is
// all slots at once; else it has none before Welcome, since the router may never answer.
func (l *Ledger) Join() *Router {
	r := &Router{}
	l.routers = append(l.routers, r)
	if len(l.routers) == 1 {
		r.share = max(l.slots-l.Frozen(), 0)
	}
	return r
}

// Welcome records the router of a stream. The stream takes over what another one of the same
// router keeps, and what is frozen of it. silent means that the router sends no Usage: what is
// offered to it counts as acknowledged.
func (l *Ledger) Welcome(r *Router, id string, silent bool, now time.Time) {
	kept, from := l.thaw(id)
	for _, other := range l.routers {
		if other != r && other.id == id && !other.passive {
			kept = max(kept, other.kept())
			from = latest(from, other.quiet.from)
			other.passive = true
		}
	}
	r.id, r.silent = id, silent
	r.takeOver(kept, from)
	if len(l.active()) > 1 {
		l.lastTwo = now
	}
}

// takeOver makes the router keep as much as it kept by another stream, until it takes the next
// offer of this one into account. What it says before may be older. It uses the other stream
// until from, at the latest.
func (r *Router) takeOver(kept int, from time.Time) {
	r.expect(offer{r.number + 1, kept})
	r.quiet = quiet{from: from, offer: r.number + 1}
	r.news = true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// expect adds an offer that is to be acknowledged. The router keeps the highest share that it
// may still take into account, so an earlier one that is not higher makes no difference.
func (r *Router) expect(o offer) {
	for len(r.open) > 0 && r.open[len(r.open)-1].share <= o.share {
		r.open = r.open[:len(r.open)-1]
	}
	r.open = append(r.open, o)
}

// active returns the routers that have sent Welcome.
func (l *Ledger) active() []*Router {
	return slices.DeleteFunc(slices.Clone(l.routers), func(r *Router) bool { return r.id == "" || r.passive })
}

// remove removes a stream. It returns another stream of its router if that must take over.
func (l *Ledger) remove(r *Router) (next *Router) {
	l.routers = slices.DeleteFunc(l.routers, func(x *Router) bool { return x == r })
	if r.id == "" || r.passive {
		return nil
	}
	for _, other := range l.routers {
		if other.id == r.id {
			next = other
		}
	}
	return next
}

// Use records what a router says. Numbers out of range are brought into it.
func (l *Ledger) Use(r *Router, u Usage) {
	u.Taken = min(max(u.Taken, 0), l.slots)
	u.Kept = min(max(u.Kept, u.Taken), l.slots)
	u.Waiting = min(max(u.Waiting, 0), l.slots)
	r.usage = u
	r.returned = u.Kept
	if u.Offer >= r.quiet.offer {
		r.quiet = quiet{}
	}
	for len(r.open) > 0 && r.open[0].number <= u.Offer {
		r.open = r.open[1:]
	}
}

// Offer returns what to say to the router in the next message: the number of the offer, above
// that of the last one, and the share.
func (r *Router) Offer() (number uint64, share int) {
	r.number++
	r.said, r.news = r.share, false
	if r.silent {
		r.open, r.returned = nil, r.share
		return r.number, r.share
	}
	r.expect(offer{r.number, r.share})
	return r.number, r.share
}

// Due reports whether the router must get an offer, since its share is another one than in
// the last offer.
func (r *Router) Due() bool { return r.news || r.share != r.said }

// kept returns how many slots are not for others: those that the router may use until it says
// something else, and its share, which may not have been said to it yet.
func (r *Router) kept() int { return max(r.share, r.usable()) }

// usable returns how many slots the router may use until it is said something else.
func (r *Router) usable() int {
	if len(r.open) > 0 {
		return max(r.returned, r.open[0].share)
	}
	return r.returned
}

// need returns the router's need. Nothing is known of a silent one: it may need everything.
func (r *Router) need(slots int) Need {
	if r.silent {
		return Need{Share: r.share, Waiting: slots}
	}
	return Need{Share: r.share, Taken: r.usage.Taken, Waiting: r.usage.Waiting}
}

// Divide sets the shares of the routers by what they have said. Shares fall at once, and rise
// by the slots that nobody keeps.
func (l *Ledger) Divide() {
	routers := l.inTurn()
	if len(routers) == 0 {
		return
	}
	needs := make([]Need, len(routers))
	for i, r := range routers {
		needs[i] = r.need(l.slots)
	}
	targets := Shares(l.divisible(), needs)
	left := l.divisible()
	levels := make([]int, len(routers))
	for i, r := range routers {
		r.share = min(r.share, targets[i])
		levels[i] = r.kept()
		left -= levels[i]
	}
	if left < 0 {
		return // a router has slots that it was not offered: it had them of an earlier agent
	}
	fill(levels, targets, left)
	for i, r := range routers {
		r.share = min(targets[i], levels[i])
	}
}

// divisible returns how many slots there are for the routers that have answered.
func (l *Ledger) divisible() int {
	n := l.slots - l.Frozen()
	for _, r := range l.routers {
		if r.id == "" {
			n -= r.kept()
		}
	}
	return max(n, 0)
}

// inTurn returns the routers that have answered, beginning with the one whose turn it is.
func (l *Ledger) inTurn() []*Router {
	routers := l.active()
	if len(routers) == 0 {
		return nil
	}
	first := l.turn % len(routers)
	return append(routers[first:], routers[:first]...)
}

// Scarce reports whether requests wait at more routers than there are slots, so that NextTurn
// must be called from time to time.
func (l *Ledger) Scarce() bool {
	waiting := 0
	for _, r := range l.active() {
		waiting += min(r.need(l.slots).Waiting, 1)
	}
	return waiting > l.divisible()
}

// Wanting reports whether requests wait at a router while another one, where none waits, has a
// share that it may not need any more.
func (l *Ledger) Wanting() bool {
	wants, mayHave := false, false
	for _, r := range l.active() {
		n := r.need(l.slots)
		wants = wants || n.Waiting > 0 && n.wants(l.slots) > n.Share
		mayHave = mayHave || n.Waiting == 0 && n.Share > 0
	}
	return wants && mayHave
}

// NextTurn makes another router the first to get a slot when there are too few.
func (l *Ledger) NextTurn() { l.turn++ }
