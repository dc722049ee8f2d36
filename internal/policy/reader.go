// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const maxName = 256 // bytes

// reader walks the nodes of a document and collects what is wrong, so that each
// problem has its path.
type reader struct{ found Problems }

func (r *reader) add(path string, line int, format string, args ...any) {
	switch len(r.found) {
	case maxProblems:
		r.found = append(r.found, Problem{Message: fmt.Sprintf("more than %d problems: the rest is not listed", maxProblems)})
	case maxProblems + 1:
	default:
		r.found = append(r.found, Problem{Path: path, Line: line, Message: fmt.Sprintf(format, args...)})
	}
}

// bad says what the value at path must be, and what it is.
func (r *reader) bad(path string, n *yaml.Node, must string) {
	is := map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list"}[n.Kind]
	switch {
	case n.Kind == yaml.AliasNode:
		must, is = "must be written out", "a reference to an anchor"
	case n.Kind == yaml.ScalarNode && absent(n):
		is = "empty"
	case n.Kind == yaml.ScalarNode:
		is = quote(n.Value)
		if n.ShortTag() != "!!str" && strings.HasPrefix(n.ShortTag(), "!!") {
			is = fmt.Sprintf("the %s %s", strings.TrimPrefix(n.ShortTag(), "!!"), is)
		}
	}
	r.add(path, n.Line, "%s, is %s", must, is)
}

// absent is a value that was left out after its key.
func absent(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// mapping calls f for each entry of a mapping, the first of those with the same
// key. A key must be a string.
func (r *reader) mapping(path string, n *yaml.Node, f func(path string, key, value *yaml.Node)) {
	if absent(n) {
		return
	}
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		r.bad(path, n, "must be a mapping")
		return
	}
	first := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			r.bad(path, key, "each key must be a string, in quotes where it looks like something else")
			continue
		}
		at := member(path, key.Value)
		if line, again := first[key.Value]; again {
			r.add(at, key.Line, "is there twice: it stands in line %d", line)
			continue
		}
		first[key.Value] = key.Line
		f(at, key, value)
	}
}

// fields calls the reader of each known entry.
func (r *reader) fields(path string, n *yaml.Node, known map[string]func(path string, value *yaml.Node)) {
	r.mapping(path, n, func(at string, key, value *yaml.Node) {
		if read := known[key.Value]; read != nil {
			read(at, value)
			return
		}
		r.add(at, key.Line, "is not known")
	})
}

// list calls f for each entry of a list.
func (r *reader) list(path string, n *yaml.Node, f func(path string, value *yaml.Node)) {
	if absent(n) {
		return
	}
	if n.Kind != yaml.SequenceNode || n.ShortTag() != "!!seq" {
		r.bad(path, n, "must be a list")
		return
	}
	for i, value := range n.Content {
		f(fmt.Sprintf("%s[%d]", path, i), value)
	}
}

// name reads a name. A bad one comes back empty.
func (r *reader) name(path string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		r.bad(path, n, "must be a string, in quotes where it looks like something else")
		return ""
	}
	if !r.checkName(path, n.Line, n.Value) {
		return ""
	}
	return n.Value
}

// checkName tells a name from what is none. It must suit the sibling map, the
// registry and a metric's label.
func (r *reader) checkName(path string, line int, s string) bool {
	switch {
	case s == "":
		r.add(path, line, "must not be empty")
	case len(s) > maxName:
		r.add(path, line, "must have at most %d bytes, has %d", maxName, len(s))
	case !utf8.ValidString(s), strings.ContainsFunc(s, unicode.IsControl):
		r.add(path, line, "must not contain control characters, is %s", quote(s))
	default:
		return true
	}
	return false
}

// number reads a whole number from 1 to most. A bad one comes back as 0.
func (r *reader) number(path string, n *yaml.Node, most int64) int64 {
	var v int64
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&v) != nil || v < 1 || v > most {
		r.bad(path, n, fmt.Sprintf("must be a whole number from 1 to %d", most))
		return 0
	}
	return v
}
