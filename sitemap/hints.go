// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"context"
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
// change it. A time in the future counts as now. received is the time of receipt by the clock
// that is compared with the hints' own times; it is that of another machine if routers share
// the hints.
func (h *hintSet) receive(now, received time.Time, freshFor time.Duration) {
	h.received = now
	for i := range h.sightings {
		s := &h.sightings[i]
		s.life = freshFor - max(0, received.Sub(h.list[s.hint].ObservedAt))
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

// PushHints replaces only the hints of the map in force, for all routers of the site. If it
// returns an error, Problems, ErrTooLarge, ErrNoMap or an *UnreadableError, nothing was
// applied. Hints are not written to disk, since they are stale after a restart. If the other
// routers cannot be asked, this one decides alone.
func (s *Store) PushHints(ctx context.Context, data []byte) (HintsSummary, error) {
	if len(data) > MaxBytes {
		return HintsSummary{}, ErrTooLarge
	}
	sum, err := s.pushHints(ctx, data)
	s.reportChanges() // a map of another router may have come before
	return sum, err
}

func (s *Store) pushHints(ctx context.Context, data []byte) (HintsSummary, error) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if sum, asked, err := s.shareHints(ctx, data); asked {
		return sum, err
	}
	h, err := s.readHints(data, s.Current())
	if err != nil {
		return HintsSummary{}, err
	}
	s.putHints(h, time.Now())
	s.link.alone = true
	return h.summary(), nil
}

// readHints parses hints for a map, which may be nil.
func (s *Store) readHints(data []byte, m *Map) (*hintSet, error) {
	r := newReader(data)
	var doc document
	object(r, hintsFields, &doc)
	r.end()
	if m != nil && !r.stopped() {
		doc.sites = m.sites
		doc.check(&r.collector, s.self)
	}
	if len(r.found) > 0 {
		return nil, Problems(r.found)
	}
	if m == nil {
		return nil, ErrNoMap
	}
	return buildHints(doc.hints, m.core)
}

// putHints puts hints in force. received is when they were received by the clock by which
// their age is counted.
func (s *Store) putHints(h *hintSet, received time.Time) {
	st := s.State()
	h.receive(time.Now(), received, s.freshFor)
	st.Map = &Map{core: st.Map.core, hints: h}
	s.current.Store(&st)
}
