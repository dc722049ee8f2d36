// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MustBeString is the message for what should be a string.
const MustBeString = "must be a string, in quotes where it looks like something else"

// Value is a place in a file: a node with its path. All values of a file add to the
// same list of problems.
type Value struct {
	*yaml.Node

	Path string
	walk *walk
}

// walk is a file that is being read.
type walk struct {
	rules Rules
	found Problems
}

// isMapping reports whether a node is a mapping without a tag of its own.
func isMapping(n *yaml.Node) bool { return n.Kind == yaml.MappingNode && n.ShortTag() == "!!map" }

// IsString reports whether a node is a string.
func IsString(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" }

func absent(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Absent reports whether the value was left out after its key.
func (v Value) Absent() bool { return absent(v.Node) }

// At returns the same path with another node, whose line is reported.
func (v Value) At(n *yaml.Node) Value {
	v.Node = n
	return v
}

// Member returns the place of a mapping's entry, reported at n.
func (v Value) Member(key string, n *yaml.Node) Value {
	v.Node, v.Path = n, v.walk.rules.member(v.Path, key)
	return v
}

// Quote quotes a value of the file and shortens it, as Show says.
func (v Value) Quote(s string) string { return v.walk.rules.Show.quote(s) }

// Add reports a problem here.
func (v Value) Add(format string, args ...any) {
	one := Problem{Path: v.Path, Line: v.Line, Message: fmt.Sprintf(format, args...)}
	v.walk.found.AddUpTo(maxProblems, one, fmt.Sprintf("more than %d problems: the rest is not listed", maxProblems))
}

// Check adds err as a problem here, unless it is nil.
func (v Value) Check(err error) {
	if err != nil {
		v.Add("%s", err.Error())
	}
}

// Bad reports what the value must be and, as far as Show allows, what it is.
func (v Value) Bad(must string) {
	switch {
	case v.Kind == yaml.AliasNode:
		v.Add("must be written out, is a reference to an anchor")
	case v.walk.rules.Show == Nothing:
		v.Add("%s", must)
	case v.walk.rules.Show == Values:
		v.Add("%s, %s", must, v.whatByKind())
	default:
		v.Add("%s, %s", must, v.whatByTag())
	}
}

// whatByKind describes the value by its kind, whatever tag it has.
func (v Value) whatByKind() string {
	tag := v.ShortTag()
	switch {
	case v.Kind == yaml.MappingNode:
		return "is a mapping"
	case v.Kind == yaml.SequenceNode:
		return "is a list"
	case v.Absent():
		return "is empty"
	case tag != "!!str" && strings.HasPrefix(tag, "!!"):
		return v.typed(tag)
	}
	return "is " + v.Quote(v.Value)
}

// whatByTag describes the value by its tag, and shows no tag that the file made up.
func (v Value) whatByTag() string {
	switch tag := v.ShortTag(); {
	case tag == "!!map":
		return "is a mapping"
	case tag == "!!seq":
		return "is a list"
	case tag == "!!null":
		return "is empty"
	case tag == "!!str":
		return "is " + v.Quote(v.Value)
	case slices.Contains(knownTags, tag):
		return v.typed(tag)
	}
	return "has a tag of its own"
}

func (v Value) typed(tag string) string {
	return fmt.Sprintf("is the %s %s", strings.TrimPrefix(tag, "!!"), v.Quote(v.Value))
}

// knownTags are the tags that YAML gives to words without quotes, besides null.
var knownTags = []string{"!!int", "!!float", "!!bool", "!!timestamp", "!!merge"}
