// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const maxName = 256 // bytes

// value is a place in the file: a node with its path. All values of a file share
// the list of what is wrong.
type value struct {
	*yaml.Node

	path  string
	found *Problems
}

func (v value) add(format string, args ...any) {
	switch len(*v.found) {
	case maxProblems:
		*v.found = append(*v.found, Problem{Message: fmt.Sprintf("more than %d problems: the rest is not listed", maxProblems)})
	case maxProblems + 1:
	default:
		*v.found = append(*v.found, Problem{Path: v.path, Line: v.Line, Message: fmt.Sprintf(format, args...)})
	}
}

// bad says what the value must be, and what it is.
func (v value) bad(must string) {
	tag := v.ShortTag()
	switch {
	case v.Kind == yaml.AliasNode:
		v.add("must be written out, is a reference to an anchor")
	case tag == "!!map":
		v.add("%s, is a mapping", must)
	case tag == "!!seq":
		v.add("%s, is a list", must)
	case tag == "!!null":
		v.add("%s, is empty", must)
	case tag == "!!str":
		v.add("%s, is %s", must, quote(v.Value))
	case slices.Contains(knownTags, tag):
		v.add("%s, is the %s %s", must, strings.TrimPrefix(tag, "!!"), quote(v.Value))
	default:
		v.add("%s, has a tag of its own", must)
	}
}

// knownTags are those that YAML gives to words without quotes, besides the null.
var knownTags = []string{"!!int", "!!float", "!!bool", "!!timestamp", "!!merge"}

// member is the place of a mapping's entry, reported at its key.
func (v value) member(key, n *yaml.Node) value {
	m := value{Node: n, found: v.found}
	switch {
	case !plain(key.Value):
		m.path = v.path + "[" + quote(key.Value) + "]"
	case v.path == "":
		m.path = key.Value
	default:
		m.path = v.path + "." + key.Value
	}
	return m
}

// mapping calls f for each entry of a mapping, the first of those with the same
// key, and says whether it is one.
func (v value) mapping(f func(key *yaml.Node, entry value)) bool {
	if v.Kind != yaml.MappingNode || v.ShortTag() != "!!map" {
		v.bad("must be a mapping")
		return false
	}
	first := make(map[string]int, len(v.Content)/2)
	for i := 0; i+1 < len(v.Content); i += 2 {
		key, n := v.Content[i], v.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			value{key, v.path, v.found}.bad("each key must be a string, in quotes where it looks like something else")
			continue
		}
		if line, again := first[key.Value]; again {
			at := v.member(key, key)
			at.add("is there twice: it stands in line %d", line)
			continue
		}
		first[key.Value] = key.Line
		f(key, v.member(key, n))
	}
	return true
}

// fields calls the reader of each known entry. Each that is required must be there.
func (v value) fields(known map[string]func(value), required ...string) {
	there := map[string]bool{}
	isMapping := v.mapping(func(key *yaml.Node, entry value) {
		there[key.Value] = true
		if read := known[key.Value]; read != nil {
			read(entry)
			return
		}
		entry.Node = key
		entry.add("is not known")
	})
	for _, field := range required {
		if isMapping && !there[field] {
			v.add("needs %s", field)
		}
	}
}

// list calls f for each entry of a list.
func (v value) list(f func(value)) {
	if v.Kind != yaml.SequenceNode || v.ShortTag() != "!!seq" {
		v.bad("must be a list")
		return
	}
	for i, n := range v.Content {
		f(value{n, fmt.Sprintf("%s[%d]", v.path, i), v.found})
	}
}

// names reads a list of names, none of them twice. An empty list would be read
// as nothing by some and as everything by others, so there is none.
func (v value) names(empty string) []string {
	var names []string
	first := map[string]string{}
	v.list(func(one value) {
		name := one.name()
		if before, again := first[name]; again && name != "" {
			one.add("is there twice: it is also %s", before)
			return
		}
		first[name] = one.path
		names = append(names, name)
	})
	if v.Kind == yaml.SequenceNode && len(v.Content) == 0 {
		v.add("must not be an empty list: %s", empty)
	}
	return names
}

// name reads a name. A bad one comes back empty.
func (v value) name() string {
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
		v.bad("must be a string, in quotes where it looks like something else")
		return ""
	}
	return v.checkName(v.Value)
}

// checkName gives a good name back. A bad one comes back empty.
func (v value) checkName(s string) string {
	if problem := nameProblem(s); problem != "" {
		v.add("%s", problem)
		return ""
	}
	return s
}

// nameProblem says what is wrong with a name, which must suit a log, a metric's
// label and the sibling map. A good one has no problem.
func nameProblem(s string) string {
	switch {
	case s == "":
		return "must not be empty"
	case len(s) > maxName:
		return fmt.Sprintf("must have at most %d bytes, has %d", maxName, len(s))
	case !utf8.ValidString(s), strings.ContainsFunc(s, unicode.IsControl):
		return "must not contain control characters, is " + quote(s)
	}
	return ""
}

// number reads a whole number from 1 to most. A bad one comes back as 0.
func (v value) number(most int) int {
	var n int
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!int" || v.Decode(&n) != nil || n < 1 || n > most {
		v.bad(fmt.Sprintf("must be a whole number from 1 to %d", most))
		return 0
	}
	return n
}
