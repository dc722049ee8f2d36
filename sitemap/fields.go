// SPDX-License-Identifier: Apache-2.0

package sitemap

import "encoding/json/jsontext"

// field is one member of an object of the map. The tables of fields are the whole grammar:
// every other member is an unknown field.
type field[T any] struct {
	name     string
	required bool
	read     func(*reader, *T)
}

// document is a map as it was read, in the writer's order.
type document struct {
	generation int64
	numbered   bool
	sites      []Site
	placements []Placement
	hints      []Hint

	// sitesUnread: sites is not an array. Without this, the site of every placement would
	// be reported as unknown.
	sitesUnread bool
}

var documentFields = []field[document]{
	{name: "generation", read: func(r *reader, d *document) { d.generation, d.numbered = r.wholeNumber() }},
	{name: "sites", read: func(r *reader, d *document) {
		var ok bool
		d.sites, ok = array(r, readSite)
		d.sitesUnread = !ok
	}},
	{name: "placements", read: func(r *reader, d *document) {
		d.placements, _ = array(r, func(r *reader, p *Placement) { object(r, placementFields, p) })
	}},
	{name: "hints", read: readHints},
}

// hintsFields are the fields of a document that has only hints. The field is required, so
// that an empty object does not delete all hints.
var hintsFields = []field[document]{
	{name: "hints", required: true, read: readHints},
}

func readHints(r *reader, d *document) {
	d.hints, _ = array(r, func(r *reader, h *Hint) { object(r, hintFields, h) })
}

var siteFields = []field[Site]{
	{name: "id", required: true, read: func(r *reader, s *Site) { s.ID = r.name() }},
	{name: "url", required: true, read: func(r *reader, s *Site) { s.URL, _ = r.text() }},
	{name: "insecure", read: func(r *reader, s *Site) { s.Insecure = r.boolean() }},
	{name: "scopes", read: func(r *reader, s *Site) { s.Scopes = readScopes(r) }},
}

var placementFields = []field[Placement]{
	{name: "model", required: true, read: func(r *reader, p *Placement) { p.Model = r.name() }},
	{name: "kind", required: true, read: func(r *reader, p *Placement) { p.Kind = r.kind() }},
	{name: "site", required: true, read: func(r *reader, p *Placement) { p.Site = r.name() }},
	{name: "scale_from_zero", read: func(r *reader, p *Placement) { p.ScaleFromZero = r.boolean() }},
	{name: "hold_budget", read: func(r *reader, p *Placement) { p.HoldBudget = r.duration() }},
	{name: "wake", read: func(r *reader, p *Placement) { p.Wake = readWake(r) }},
}

var wakeFields = []field[Wake]{
	{name: "url", required: true, read: func(r *reader, w *Wake) { w.URL = r.wakeURL() }},
	{name: "method", read: func(r *reader, w *Wake) { w.Method = r.method() }},
	{name: "cooldown", read: func(r *reader, w *Wake) { w.Cooldown = r.duration() }},
}

var hintFields = []field[Hint]{
	{name: "model", required: true, read: func(r *reader, h *Hint) { h.Model = r.name() }},
	{name: "kind", required: true, read: func(r *reader, h *Hint) { h.Kind = r.kind() }},
	{name: "site", required: true, read: func(r *reader, h *Hint) { h.Site = r.name() }},
	{name: "state", required: true, read: func(r *reader, h *Hint) { h.Warm = r.warm() }},
	{name: "observed_at", required: true, read: func(r *reader, h *Hint) { h.ObservedAt = r.time() }},
}

// readSite reads a site. It checks the URL last, since insecure, which allows http, may
// come after it.
func readSite(r *reader, s *Site) {
	known := len(r.found)
	if !object(r, siteFields, s) || reported(r.found[known:], joinPath(r.currentPath(), "url")) {
		return
	}
	if message := checkURL(s.URL, s.Insecure); message != "" {
		r.add(joinPath(r.currentPath(), "url"), message)
	}
}

func reported(found []Problem, path string) bool {
	for _, p := range found {
		if p.Path == path {
			return true
		}
	}
	return false
}

func readScopes(r *reader) []string {
	scopes, _ := array(r, func(r *reader, s *string) { *s = r.name() })
	first := make(map[string]int, len(scopes))
	for i, s := range scopes {
		if s == "" {
			continue
		}
		if before, again := first[s]; again {
			r.path = append(r.path, step{index: i})
			r.addHere("repeats the scope %s of number %d", quote(s), before)
			r.path = r.path[:len(r.path)-1]
			continue
		}
		first[s] = i
	}
	return scopes
}

// array reads an array. An invalid element keeps its index in the list, so that later
// checks report the right indexes. The result is false if there was no array.
func array[T any](r *reader, read func(*reader, *T)) ([]T, bool) {
	if !r.open(jsontext.KindBeginArray, "an array") {
		return nil, false
	}
	var list []T
	for r.hasMore(jsontext.KindEndArray) {
		list = append(list, *new(T))
		r.path = append(r.path, step{index: len(list) - 1})
		read(r, &list[len(list)-1])
		r.path = r.path[:len(r.path)-1]
	}
	return list, true
}

// object reads an object by its table of fields. It reports whether there was one that
// could be read to its end.
func object[T any](r *reader, fields []field[T], out *T) bool {
	if !r.open(jsontext.KindBeginObject, "an object") {
		return false
	}
	var seen uint
	for r.hasMore(jsontext.KindEndObject) {
		seen |= member(r, fields, seen, out)
	}
	for i, f := range fields {
		if f.required && seen&(1<<i) == 0 && !r.stopped() {
			r.add(joinPath(r.currentPath(), f.name), "is missing")
		}
	}
	return !r.stopped()
}

// member reads one member of an object. It returns the bit of its field, or 0 if the field
// is unknown or among those seen.
func member[T any](r *reader, fields []field[T], seen uint, out *T) uint {
	name, ok := r.unquoted()
	if !ok {
		return 0
	}
	i := find(fields, name)
	if i < 0 {
		r.add(joinPath(r.currentPath(), string(name)), "is not a known field")
		r.skip()
		return 0
	}
	if seen&(1<<i) != 0 {
		r.add(joinPath(r.currentPath(), fields[i].name), "is given more than once")
		r.skip()
		return 0
	}
	r.path = append(r.path, step{name: fields[i].name})
	fields[i].read(r, out)
	r.path = r.path[:len(r.path)-1]
	return 1 << i
}

func find[T any](fields []field[T], name []byte) int {
	for i := range fields {
		if fields[i].name == string(name) {
			return i
		}
	}
	return -1
}
