// SPDX-License-Identifier: Apache-2.0

package divide

import (
	"math"
	"slices"
	"time"
)

// LookEvery is the interval of the readings of an engine's number of requests while slots are
// frozen. Half of it passes between a reading and the routers' Usages before and after it.
// That is longer than a request is on its way from Envoy to the engine, and than the log entry
// of one that has ended is on its way to its router.
const LookEvery = 500 * time.Millisecond

// roughLooks is how many readings in a row must agree if they are compared with slots that
// were taken at about the same time, instead of with requests that were in the engine for sure.
const roughLooks = 10

// none is the bound of a reading that there has not been.
const none = math.MaxInt

// looks has the last readings of the engine's number of requests. A reading, less the requests
// of the connected routers, is a bound of what still runs of the others.
type looks struct {
	from    time.Time // readings that began earlier do not count
	at      time.Time // when the last one began; zero: none
	reading int       // the last one, with which the Usages after it are not compared yet
	bound   int       // by the reading before
	rough   []int     // by taken slots, of the last roughLooks readings
}

// sample has a router's Usages around the last reading.
type sample struct {
	base   Usage  // before the last reading; in no Usage if not known
	known  bool   // base was sent
	next   Usage  // before the next reading
	exists bool   // next was sent
	asked  uint64 // the last offer before the routers were asked for a Usage after the last reading
}

func newLooks() looks { return looks{reading: none, bound: none} }

// restart makes earlier readings count no more: a router was lost, and sent requests until from.
func (k *looks) restart(from time.Time) {
	from = latest(from, k.from)
	*k = newLooks()
	k.from = from
}

// Ask must be called between two readings, before an offer is sent to all routers: their
// Usages that follow are compared with the reading before.
func (l *Ledger) Ask() {
	for _, r := range l.routers {
		s := &r.sample
		s.base, s.known = s.next, s.exists
		s.next, s.exists = r.usage, r.usage.Offer > 0
		s.asked = r.number
	}
}

// Look records a reading of the engine's number of requests that began at a time, and reports
// whether fewer slots are frozen by it and the readings before.
func (l *Ledger) Look(began time.Time, inFlight int) (fewer bool) {
	k, before := &l.looks, l.Frozen()
	if before == 0 || began.Before(k.from) || !k.at.IsZero() && began.Sub(k.at) < LookEvery*3/4 {
		return false
	}
	if k.reading != none {
		bound, rough := l.compare(k.reading)
		l.shrink(max(bound, k.bound))
		k.bound = bound
		k.rough = append(k.rough[max(0, len(k.rough)-roughLooks+1):], rough)
		if len(k.rough) == roughLooks && began.Sub(k.from) >= GoneTime {
			l.shrink(slices.Max(k.rough))
		}
	}
	l.shrink(max(inFlight, k.bound)) // at most all of them are of lost routers
	k.at, k.reading = began, inFlight
	return l.Frozen() < before
}

// compare returns how many requests of lost routers a reading shows at most: those that are not
// requests that connected routers had before the reading and still had after it. rough is the
// number if each slot that was taken both before and after was a request in the engine.
func (l *Ledger) compare(reading int) (bound, rough int) {
	bound, rough = reading, reading
	for _, r := range l.routers {
		s, u := &r.sample, r.usage
		if !s.known || u.Offer <= s.asked {
			continue
		}
		ended := u.Released - s.base.Released
		bound -= max(0, s.base.Taken-int(min(ended, math.MaxInt32)))
		rough -= min(s.base.Taken, u.Taken)
	}
	return max(bound, 0), max(rough, 0)
}
