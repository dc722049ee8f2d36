// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"fmt"

	"github.com/holdgate/holdgate/internal/target"
)

// MaxBytes is the largest size of a pushed map.
const MaxBytes = 8 << 20

// Parse parses and checks a map for the site self, which needs no entry in sites. If the map
// is invalid, it returns all problems as Problems. Parse does not limit the size: [Store.Push]
// does.
func Parse(data []byte, self string) (*Map, error) {
	r := newReader(data)
	var doc document
	object(r, documentFields, &doc)
	r.end()
	if !r.stopped() {
		doc.check(&r.collector, self)
	}
	if len(r.found) > 0 {
		return nil, Problems(r.found)
	}
	return build(doc, self)
}

// check finds the problems between entries of a document, such as duplicates. It ignores
// empty names and invalid kinds, which were reported while reading.
func (d *document) check(c *collector, self string) {
	known := map[string]int{}
	for i, s := range d.sites {
		if s.ID == "" {
			continue
		}
		if first, again := known[s.ID]; again {
			c.add(fmt.Sprintf("sites[%d].id", i), fmt.Sprintf("repeats sites[%d]: %s", first, quote(s.ID)))
			continue
		}
		known[s.ID] = i
	}
	siteKnown := func(id string) bool {
		_, listed := known[id]
		return listed || id == self || id == "" || d.sitesUnread
	}

	placed := checkList{section: "placements", collector: c, first: make(map[entryKey]int, len(d.placements))}
	for i, p := range d.placements {
		placed.entry(i, entryKey{p.Target, p.Site}, siteKnown)
	}
	hinted := checkList{section: "hints", collector: c, first: make(map[entryKey]int, len(d.hints))}
	for i, h := range d.hints {
		hinted.entry(i, entryKey{h.Target, h.Site}, siteKnown)
	}
}

// entryKey must be unique among placements and among hints.
type entryKey struct {
	target.Target
	site string
}

type checkList struct {
	*collector

	section string
	first   map[entryKey]int
}

func (l checkList) entry(i int, k entryKey, siteKnown func(string) bool) {
	if !siteKnown(k.site) {
		l.add(fmt.Sprintf("%s[%d].site", l.section, i),
			"is not this site and not in sites: "+quote(k.site))
	}
	if k.Model == "" || k.site == "" || k.Kind == badKind {
		return
	}
	if before, again := l.first[k]; again {
		l.add(fmt.Sprintf("%s[%d]", l.section, i), fmt.Sprintf(
			"repeats %s[%d]: model %s, kind %s, site %s", l.section, before, quote(k.Model), k.Kind, quote(k.site)))
		return
	}
	l.first[k] = i
}
