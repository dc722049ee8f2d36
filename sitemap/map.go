// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// Site is another router of the fleet.
type Site struct {
	ID  string
	URL string
	// Insecure allows a URL with http.
	Insecure bool
	Scopes   []string
}

// Placement is a target that a site serves while the model is awake there.
type Placement struct {
	target.Target

	Site string
	// ScaleFromZero: requests may be held at the site while no agent serves it.
	ScaleFromZero bool
	// HoldBudget is how long requests may be held; 0 means the router's default.
	HoldBudget time.Duration
	// Wake is the webhook that wakes the model at the site, nil if there is none.
	Wake *Wake
}

// Map is a valid map, indexed for one site. It is immutable, so any number of goroutines may
// read it. Maps that differ only in their hints share the core.
type Map struct {
	*core

	hints *hintSet
}

// core is a map without its hints.
type core struct {
	generation int64
	numbered   bool
	sites      []Site
	placements []Placement // sorted, so that those of a target are adjacent

	targets  map[target.Target]span
	holdable []string
	models   []string
	siblings siblings

	json []byte
	tag  string
}

// span is the range of one target in core.placements, without end. here is the index of this
// site's placement, -1 if there is none.
type span struct {
	first, end, here int
}

// siblings returns the number of placements at other sites.
func (s span) siblings() int {
	if s.here < 0 {
		return s.end - s.first
	}
	return s.end - s.first - 1
}

// build returns the Map of a valid document.
func build(d document, self string) (*Map, error) {
	c, err := buildCore(d, self)
	if err != nil {
		return nil, err
	}
	h, err := buildHints(d.hints, c)
	if err != nil {
		return nil, err
	}
	return &Map{core: c, hints: h}, nil
}

func buildCore(d document, self string) (*core, error) {
	c := &core{
		generation: d.generation,
		numbered:   d.numbered,
		sites:      d.sites,
		placements: slices.Clip(d.placements),
		targets:    map[target.Target]span{},
	}
	for _, s := range c.sites {
		slices.Sort(s.Scopes)
	}
	slices.SortFunc(c.sites, func(a, b Site) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.placements, func(a, b Placement) int { return compare(a.Target, a.Site, b.Target, b.Site) })
	for i, p := range c.placements {
		c.index(i, p, self)
	}
	c.siblings = newSiblings(c.sites, c.placements)
	return c, c.encode()
}

func compare(a target.Target, aSite string, b target.Target, bSite string) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Kind, b.Kind), cmp.Compare(aSite, bSite))
}

// index adds the placement with index i to the lookup tables. Placements are added in the
// order of their models, so the lists of names are sorted too.
func (c *core) index(i int, p Placement, self string) {
	s, ok := c.targets[p.Target]
	if !ok {
		s = span{first: i, here: -1}
	}
	s.end = i + 1
	if p.Site == self {
		s.here = i
	}
	c.targets[p.Target] = s
	if n := len(c.models); n == 0 || c.models[n-1] != p.Model {
		c.models = append(c.models, p.Model)
	}
	if p.Site != self || !p.ScaleFromZero {
		return
	}
	if n := len(c.holdable); n == 0 || c.holdable[n-1] != p.Model {
		c.holdable = append(c.holdable, p.Model)
	}
}

// Here returns the placement of a target at this site.
func (m *Map) Here(t target.Target) (Placement, bool) {
	s, ok := m.targets[t]
	if !ok || s.here < 0 {
		return Placement{}, false
	}
	return m.placements[s.here], true
}

// Holdable returns the models placed here with scale_from_zero for any kind, sorted.
func (m *Map) Holdable() []string {
	return slices.Clone(m.holdable)
}

// Has reports whether a model is placed at any site, for any kind.
func (m *Map) Has(model string) bool {
	_, found := slices.BinarySearch(m.models, model)
	return found
}

// Models returns the names of all placed models, sorted.
func (m *Map) Models() []string {
	return slices.Clone(m.models)
}

// Hints returns the hints, sorted by model, kind and site.
func (m *Map) Hints() []Hint {
	return slices.Clone(m.hints.list)
}

// Generation returns the generation of the map, 0 if it has none.
func (m *Map) Generation() int64 {
	return m.generation
}

// JSON returns the map in its canonical form: with a fixed order of fields and entries, and
// without defaults. Equivalent maps have the same form. The caller must not change the bytes.
func (m *Map) JSON() []byte {
	if len(m.hints.list) == 0 {
		return m.json
	}
	return m.withHints()
}

// ETag returns the strong entity tag of JSON, in quotes.
func (m *Map) ETag() string {
	return `"` + m.tag + m.hints.tag + `"`
}

// Tag returns the tag of the map without its hints.
func (m *Map) Tag() string { return m.tag }

// Matches reports whether an If-Match header names this map. The hints are ignored: they
// change every second, and a writer of maps need not follow them.
func (m *Map) Matches(ifMatch string) bool {
	for tag := range strings.SplitSeq(ifMatch, ",") {
		tag = strings.TrimSpace(tag)
		if tag == "*" || len(tag) == len(m.ETag()) && strings.HasPrefix(tag, `"`+m.tag) && strings.HasSuffix(tag, `"`) {
			return true
		}
	}
	return false
}
