// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"cmp"
	"slices"
	"time"
)

// Candidate is a sibling that has the model, and why it was chosen or not.
type Candidate struct {
	Site    string `json:"site"`
	URL     string `json:"url"`
	InScope bool   `json:"in_scope"`
	// Home is 1 or 2 for the first and second home of the key, 0 for other sites.
	Home int `json:"home,omitzero"`
	// State is warm or cold by a fresh hint, stale by an older one, or unknown; empty for
	// a site that is out of scope.
	State string `json:"state,omitzero"`
	// Chosen is true for at most one candidate.
	Chosen bool `json:"chosen"`
	// Why is the reason as a sentence.
	Why string `json:"why"`
}

// Explain returns the choice of Pick and all siblings that it considered: in the order of
// their rank, those out of scope last.
func (m *Map) Explain(q Query, now time.Time) (Choice, []Candidate) {
	var all []ranked
	choice := m.pick(q, now, &all)
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(b.rank, a.rank) })
	elapsed := now.Sub(m.hints.received)
	list := make([]Candidate, 0, len(all))
	for i, r := range all {
		site := &m.sites[r.site]
		candidate := Candidate{Site: site.ID, URL: site.URL, InScope: r.exists(), Chosen: choice.Site == site}
		if candidate.InScope {
			candidate.State = candidateState(m.hints.sightingsOf(q.Target), r.site, elapsed)
			if i < homeSet {
				candidate.Home = i + 1
			}
		}
		candidate.Why = whyText(choice, candidate)
		list = append(list, candidate)
	}
	return choice, list
}

// homeSet is how many homes a key has per model.
const homeSet = 2

// The states of a candidate beyond those of a hint.
const (
	stateUnknown = "unknown"
	stateStale   = "stale"
)

// candidateState returns the state of a candidate. It distinguishes a stale hint from none.
func candidateState(seen []sighting, site int32, elapsed time.Duration) string {
	switch stateAt(seen, site, elapsed) {
	case warm:
		return stateWarm
	case cold:
		return stateCold
	default:
	}
	if slices.ContainsFunc(seen, func(s sighting) bool { return s.site == site }) {
		return stateStale
	}
	return stateUnknown
}

// whyText returns why a candidate was chosen or not.
func whyText(choice Choice, c Candidate) string {
	switch {
	case !c.InScope:
		return "its scopes and the key's have none in common"
	case c.Chosen:
		return choice.Reason.Text()
	case !choice.Redirect:
		return choice.Reason.Text()
	case choice.Reason == ReasonFirstHome:
		return "not known to be warm, and another site comes first for this key"
	case c.State == stateWarm:
		return "warm too, but another site comes first for this key"
	default:
		return "not known to be warm, as another site is"
	}
}

// Sibling is another site with the hints about it.
type Sibling struct {
	Site

	Hints []SiblingHint
}

// SiblingHint is a hint about a model at a sibling.
type SiblingHint struct {
	Hint

	// State is warm or cold, stale for a hint that is too old, or unknown for one that no
	// choice uses.
	State string
}

// Siblings returns the sites other than self, by their ids.
func (m *Map) Siblings(self string, now time.Time) []Sibling {
	list := make([]Sibling, len(m.sites))
	for i := range m.sites {
		list[i].Site = m.sites[i]
	}
	elapsed := now.Sub(m.hints.received)
	for _, h := range m.hints.list {
		if i, found := m.siblings.numbers[h.Site]; found {
			state := candidateState(m.hints.sightingsOf(h.Target), i, elapsed)
			list[i].Hints = append(list[i].Hints, SiblingHint{Hint: h, State: state})
		}
	}
	return slices.DeleteFunc(list, func(s Sibling) bool { return s.ID == self })
}
