// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"cmp"
	"slices"
	"time"
)

// Site is where another router of the fleet is reached.
type Site struct {
	ID  string
	URL string
	// Insecure allows a URL with http.
	Insecure bool
	Scopes   []string
}

// Placement says that a model is served at a site, when it is awake.
type Placement struct {
	Target

	Site string
	// ScaleFromZero: requests may be held at the site while no agent serves it.
	ScaleFromZero bool
	// HoldBudget is how long; 0 means the router's default.
	HoldBudget time.Duration
}

// Hint is what a map writer saw of a model at a site.
type Hint struct {
	Target

	Site       string
	Warm       bool
	ObservedAt time.Time
}

// Map is a checked map, seen from one site. It never changes, so any number of
// goroutines may read it.
type Map struct {
	generation int64
	numbered   bool
	sites      []Site
	placements []Placement // sorted, so that those of a target stand together
	hints      []Hint

	targets  map[Target]span
	holdable []string
	holds    map[string]struct{}
	models   []string

	json []byte
	etag string
}

// span is where the placements of one target are: from first up to end, and
// this site's at here, or -1.
type span struct {
	first, end, here int
}

// build indexes a document without problems.
func build(d document, self string) (*Map, error) {
	m := &Map{
		generation: d.generation,
		numbered:   d.numbered,
		sites:      d.sites,
		placements: slices.Clip(d.placements),
		hints:      slices.Clip(d.hints),
		targets:    map[Target]span{},
		holds:      map[string]struct{}{},
	}
	for _, s := range m.sites {
		slices.Sort(s.Scopes)
	}
	slices.SortFunc(m.sites, func(a, b Site) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(m.placements, func(a, b Placement) int { return compare(a.Target, a.Site, b.Target, b.Site) })
	slices.SortFunc(m.hints, func(a, b Hint) int { return compare(a.Target, a.Site, b.Target, b.Site) })
	for i, p := range m.placements {
		m.index(i, p, self)
	}
	return m, m.encode()
}

func compare(a Target, aSite string, b Target, bSite string) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Kind, b.Kind), cmp.Compare(aSite, bSite))
}

// index adds a placement to the lookups. They come sorted by model, so the
// lists of names do too.
func (m *Map) index(i int, p Placement, self string) {
	s, ok := m.targets[p.Target]
	if !ok {
		s = span{first: i, here: -1}
	}
	s.end = i + 1
	if p.Site == self {
		s.here = i
	}
	m.targets[p.Target] = s
	if n := len(m.models); n == 0 || m.models[n-1] != p.Model {
		m.models = append(m.models, p.Model)
	}
	if p.Site != self || !p.ScaleFromZero {
		return
	}
	if n := len(m.holdable); n == 0 || m.holdable[n-1] != p.Model {
		m.holdable = append(m.holdable, p.Model)
		m.holds[p.Model] = struct{}{}
	}
}

// Here gives the placement of a target at this site.
func (m *Map) Here(t Target) (Placement, bool) {
	s, ok := m.targets[t]
	if !ok || s.here < 0 {
		return Placement{}, false
	}
	return m.placements[s.here], true
}

// Placed tells whether a target is placed at any site, this one included.
func (m *Map) Placed(t Target) bool {
	_, ok := m.targets[t]
	return ok
}

// Holdable lists the models placed here with scale_from_zero under any kind,
// sorted.
func (m *Map) Holdable() []string {
	return slices.Clone(m.holdable)
}

// Holds tells whether a model is in Holdable.
func (m *Map) Holds(model string) bool {
	_, ok := m.holds[model]
	return ok
}

// Models lists the names of all placed models, sorted.
func (m *Map) Models() []string {
	return slices.Clone(m.models)
}

// Hints lists the hints, sorted by model, kind and site.
func (m *Map) Hints() []Hint {
	return slices.Clone(m.hints)
}

// Generation is the writer's number of the map; 0 also when it has none.
func (m *Map) Generation() int64 {
	return m.generation
}

// JSON gives the map in its canonical form: fixed order of fields and entries,
// defaults left out. Two maps that mean the same have the same form. The
// caller must not change it.
func (m *Map) JSON() []byte {
	return m.json
}

// ETag is the strong entity tag of JSON, with its quotes, as the header has it.
func (m *Map) ETag() string {
	return m.etag
}
