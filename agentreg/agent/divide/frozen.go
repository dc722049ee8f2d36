// SPDX-License-Identifier: Apache-2.0

package divide

import "time"

// GoneTime is how long slots stay frozen after the end of a router whose engine does not
// report its requests.
const GoneTime = 30 * time.Second

// aloneTime is how long an agent must have had one router at a time until that counts as its
// only one.
const aloneTime = 10 * time.Minute

// part is what a router kept when its stream ended.
type part struct {
	router string
	slots  int
	from   time.Time // when the router sent its last request, at the latest
}

// End describes the end of a stream.
type End struct {
	Now time.Time
	// Quiet is when the router sends no more requests, at the latest: later than Now if it may
	// not know yet that the stream has ended.
	Quiet time.Time
	// InFlight is the engine's last number of requests, nil if it does not report one.
	InFlight *int
}

// Leave removes a stream that has ended, and freezes what its router keeps. Of an agent's only
// router no more is frozen than the engine last reported, so that a restart finds its slots
// also when the engine reports nothing.
func (l *Ledger) Leave(r *Router, e End) {
	several := len(l.active()) > 1
	e.Quiet = latest(e.Quiet, r.quiet.from)
	if next := l.remove(r); next != nil {
		next.passive = false
		next.takeOver(r.usable(), e.Quiet)
		return
	}
	kept := r.usable()
	switch {
	case r.passive:
		return // another stream of the router has taken over
	case several:
		l.lastTwo = e.Now
	case !l.lastTwo.IsZero() && e.Now.Sub(l.lastTwo) < aloneTime:
	case e.InFlight == nil:
		kept = 0
	default:
		kept = min(kept, *e.InFlight)
	}
	if kept == 0 {
		return
	}
	l.frozen = append(l.frozen, part{router: r.id, slots: kept, from: e.Quiet})
	l.looks.restart(e.Quiet)
}

// Freeze freezes slots for requests that are in the engine when the agent starts: an earlier
// agent's routers have them, and do not know this one yet.
func (l *Ledger) Freeze(requests int, now time.Time) {
	l.frozen = append(l.frozen, part{slots: min(requests, l.slots), from: now})
	l.looks.restart(now)
}

// Frozen returns how many slots are frozen.
func (l *Ledger) Frozen() (n int) {
	for _, p := range l.frozen {
		n += p.slots
	}
	return n
}

// thaw removes the parts of a router. It returns how many slots they had, and when the router
// sent its last request by these streams, at the latest.
func (l *Ledger) thaw(router string) (n int, quiet time.Time) {
	l.keepParts(func(p *part) bool {
		if p.router != router {
			return true
		}
		n += p.slots
		quiet = latest(quiet, p.from)
		return false
	})
	return n, quiet
}

// shrink reduces what is frozen to most, the oldest part first.
func (l *Ledger) shrink(most int) {
	over := l.Frozen() - most
	l.keepParts(func(p *part) bool {
		off := min(max(over, 0), p.slots)
		p.slots -= off
		over -= off
		return p.slots > 0
	})
}

// Expire ends parts that have been frozen for GoneTime. It is for engines that do not report
// their requests.
func (l *Ledger) Expire(now time.Time) {
	l.keepParts(func(p *part) bool { return now.Sub(p.from) < GoneTime })
}

// Reset ends all parts: the engine has ended, and every request in it.
func (l *Ledger) Reset() { l.frozen = nil }

// keepParts removes the parts for which keep returns false.
func (l *Ledger) keepParts(keep func(*part) bool) {
	kept := l.frozen[:0]
	for _, p := range l.frozen {
		if keep(&p) {
			kept = append(kept, p)
		}
	}
	l.frozen = kept
}
