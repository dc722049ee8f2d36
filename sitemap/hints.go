// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"errors"
	"slices"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// ErrNoMap is the error of a push of hints while there is no map.
var ErrNoMap = errors.New("there is no map in force: push one before its hints")

// Hint is the state of a model at a site, as a writer of maps observed it.
type Hint struct {
	target.Target

	Site       string
	Warm       bool
	ObservedAt time.Time
}

// HintsSummary is the answer to accepted hints.
type HintsSummary struct {
	Hints int `json:"hints"`
	// Warm counts the hints whose state is warm.
	Warm int `json:"warm"`
	// Unplaced counts the hints that no choice uses: of a model that the map does not place
	// at the hint's site, or of this site.
	Unplaced int `json:"unplaced"`
}

// hintSet is the part of a map that PushHints replaces.
type hintSet struct {
	list []Hint // sorted by model, kind and site

	targets   map[target.Target]hintSpan
	sightings []sighting
	// received is when the hints were pushed; zero: they are stale.
	received time.Time

	json []byte
	tag  string
}

// hintSpan is the range of one target in hintSet.sightings, without end.
type hintSpan struct {
	first, end int
}

// sighting is a hint in the form that a choice uses. Hints that no choice uses have none.
type sighting struct {
	site int32 // index in core.sites; ascending within a target
	hint int32 // index in hintSet.list
	warm bool
	// life is how long the hint is fresh after hintSet.received.
	life time.Duration
}

// buildHints indexes hints for a map. The map must have all their sites.
func buildHints(list []Hint, c *core) (*hintSet, error) {
	h := &hintSet{list: slices.Clip(list), targets: map[target.Target]hintSpan{}}
	slices.SortFunc(h.list, func(a, b Hint) int { return compare(a.Target, a.Site, b.Target, b.Site) })
	for i, hint := range h.list {
		if !c.placedAtSibling(hint.Target, hint.Site) {
			continue
		}
		s, ok := h.targets[hint.Target]
		if !ok {
			s.first = len(h.sightings)
		}
		h.sightings = append(h.sightings, sighting{site: c.siblings.numbers[hint.Site], hint: int32(i), warm: hint.Warm})
		s.end = len(h.sightings)
		h.targets[hint.Target] = s
	}
	return h, h.encode()
}

// receive makes the hints fresh. The age of a hint is its age when it is received plus the
// time since then. The first part is computed here, so that setting the clock later does not
// change it. A time in the future counts as now.
func (h *hintSet) receive(now time.Time, freshFor time.Duration) {
	h.received = now
	for i := range h.sightings {
		s := &h.sightings[i]
		s.life = freshFor - max(0, now.Sub(h.list[s.hint].ObservedAt))
	}
}

// sightingsOf returns the sightings of a target.
func (h *hintSet) sightingsOf(t target.Target) []sighting {
	s := h.targets[t]
	return h.sightings[s.first:s.end]
}

func (s sighting) fresh(elapsed time.Duration) bool { return elapsed < s.life }

func (h *hintSet) summary() HintsSummary {
	sum := HintsSummary{Hints: len(h.list), Unplaced: len(h.list) - len(h.sightings)}
	for _, hint := range h.list {
		if hint.Warm {
			sum.Warm++
		}
	}
	return sum
}

// PushHints replaces only the hints of the map in force. If it returns an error, Problems,
// ErrTooLarge or ErrNoMap, nothing was applied. Hints are not written to disk, since they are
// stale after a restart.
func (s *Store) PushHints(data []byte) (HintsSummary, error) {
	if len(data) > MaxBytes {
		return HintsSummary{}, ErrTooLarge
	}
	r := newReader(data)
	var doc document
	object(r, hintsFields, &doc)
	r.end()

	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.State()
	if st.Map != nil && !r.stopped() {
		doc.sites = st.Map.sites
		doc.check(&r.collector, s.self)
	}
	if len(r.found) > 0 {
		return HintsSummary{}, Problems(r.found)
	}
	if st.Map == nil {
		return HintsSummary{}, ErrNoMap
	}
	h, err := buildHints(doc.hints, st.Map.core)
	if err != nil {
		return HintsSummary{}, err
	}
	h.receive(time.Now(), s.freshFor)
	st.Map = &Map{core: st.Map.core, hints: h}
	s.current.Store(&st)
	return h.summary(), nil
}
