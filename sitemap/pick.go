// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// MaxHops is how many times a request may be redirected.
const MaxHops = 2

// Query describes a request for which a sibling is to be chosen.
type Query struct {
	target.Target

	// Key is the id of the caller's key, or the tenant. It determines the caller's two home
	// sites per model; they exist so that few sites wake a model.
	Key string
	// Scopes are the scopes of the key; none: all sites are in scope.
	Scopes []string
	// Hops is how many times the request has been redirected.
	Hops int
	// CanHoldHere: this site may hold the request if it is not redirected.
	CanHoldHere bool
}

// Reason is the reason for a choice.
type Reason uint8

// The reasons. The first four choose no site.
const (
	ReasonTooManyHops Reason = iota
	ReasonNoSibling
	ReasonOutOfScope
	ReasonHomesCold
	ReasonWarmHome
	ReasonWarmSibling
	ReasonFirstHome
)

var reasonTexts = [...]string{
	ReasonTooManyHops: "the request was sent on twice already",
	ReasonNoSibling:   "the map places the model at no other site for this kind",
	ReasonOutOfScope:  "the key's scopes meet those of none of the other sites that have the model",
	ReasonHomesCold:   "the model is cold at the key's home sites too, so it can as well wake here",
	ReasonWarmHome:    "the model is warm at a home site of the key",
	ReasonWarmSibling: "the model is warm at this site, and not known to be at the key's home sites",
	ReasonFirstHome:   "no site is known to be warm, so the key's first home site has it",
}

// Text returns the reason as a sentence.
func (r Reason) Text() string {
	if int(r) < len(reasonTexts) {
		return reasonTexts[r]
	}
	return ""
}

// Choice is whether to redirect a request, and to which site.
type Choice struct {
	Redirect bool
	// Site is nil if Redirect is false. It must not be changed.
	Site   *Site
	Reason Reason
}

// Pick chooses whether to redirect a request that cannot be served here, and to which
// sibling. It depends only on its arguments and the map, takes no lock and allocates nothing.
func (m *Map) Pick(q Query, now time.Time) Choice { return m.pick(q, now, nil) }

// pick is Pick. If list is not nil, it appends each sibling of the target to it.
func (m *Map) pick(q Query, now time.Time, list *[]ranked) Choice {
	placed, ok := m.targets[q.Target]
	request := requestHash(q.Key, q.Target)
	first, second := m.homes(placed, q.Scopes, request, list)
	switch {
	case q.Hops >= MaxHops:
		return Choice{Reason: ReasonTooManyHops}
	case !ok || placed.siblings() == 0:
		return Choice{Reason: ReasonNoSibling}
	case !first.exists():
		return Choice{Reason: ReasonOutOfScope}
	}

	seen, elapsed := m.hints.sightingsOf(q.Target), now.Sub(m.hints.received)
	one := stateAt(seen, first.site, elapsed)
	two := one // if there is only one home
	if second.exists() {
		two = stateAt(seen, second.site, elapsed)
	}
	switch {
	case one == cold && two == cold && q.CanHoldHere:
		// A cold sibling is no faster than a wake here. A warm one outside the
		// home set does not change that.
		return Choice{Reason: ReasonHomesCold}
	case one == warm:
		return m.redirect(first, ReasonWarmHome)
	case two == warm:
		return m.redirect(second, ReasonWarmHome)
	}
	if best := m.warmest(seen, elapsed, q.Scopes, request); best.exists() {
		return m.redirect(best, ReasonWarmSibling)
	}
	return m.redirect(first, ReasonFirstHome)
}

func (m *Map) redirect(to ranked, why Reason) Choice {
	return Choice{Redirect: true, Site: &m.sites[to.site], Reason: why}
}

// state is the state of a model at a site by a fresh hint; unknown if there is none.
type state uint8

const (
	unknown state = iota
	cold
	warm
)

// stateAt returns the state of a target at a site, by its sightings.
func stateAt(seen []sighting, site int32, elapsed time.Duration) state {
	i, found := slices.BinarySearchFunc(seen, site, func(s sighting, site int32) int { return cmp.Compare(s.site, site) })
	switch {
	case !found || !seen[i].fresh(elapsed):
		return unknown
	case seen[i].warm:
		return warm
	}
	return cold
}

// ranked is a sibling with its rank for a request. Siblings in scope have a rank above 0, so
// the zero value, which stands for no sibling, ranks below them.
type ranked struct {
	rank uint64
	site int32
}

func (r ranked) exists() bool { return r.rank != 0 }

// homes returns the two siblings in scope with the highest rank. If list is not nil, it
// appends all siblings of the target to it; those out of scope have rank 0.
func (c *core) homes(placed span, scopes []string, request uint64, list *[]ranked) (first, second ranked) {
	for i := placed.first; i < placed.end; i++ {
		if i == placed.here {
			continue
		}
		r := ranked{site: c.siblings.siteOf[i]}
		if c.inScope(r.site, scopes) {
			r.rank = rank(request, c.siblings.hashes[r.site])
		}
		if list != nil {
			*list = append(*list, r)
		}
		switch {
		case r.rank > first.rank:
			first, second = r, first
		case r.rank > second.rank:
			second = r
		}
	}
	return first, second
}

// warmest returns the warm sibling in scope with the highest rank.
func (c *core) warmest(seen []sighting, elapsed time.Duration, scopes []string, request uint64) (best ranked) {
	for i := range seen {
		s := &seen[i]
		if !s.warm || !s.fresh(elapsed) || !c.inScope(s.site, scopes) {
			continue
		}
		if rank := rank(request, c.siblings.hashes[s.site]); rank > best.rank {
			best = ranked{rank, s.site}
		}
	}
	return best
}
