// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MustBeString is the message for a value that is not a string.
const MustBeString = "must be a string, in quotes where it looks like something else"

// Value is a node of a file with its path. All values of a file add their problems to the
// same list.
type Value struct {
	*yaml.Node

	Path string
	walk *walk
}

// walk is the state of reading one file.
type walk struct {
	rules Rules
	found Problems
}

// isMapping reports whether a node is a mapping without a custom tag.
func isMapping(n *yaml.Node) bool { return n.Kind == yaml.MappingNode && n.ShortTag() == "!!map" }

// IsString reports whether a node is a string.
func IsString(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" }

func absent(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Absent reports whether there is no value after the key.
func (v Value) Absent() bool { return absent(v.Node) }

// At returns the value with another node, whose line its problems have.
func (v Value) At(n *yaml.Node) Value {
	v.Node = n
	return v
}

// Member returns the entry of a mapping with this key and the node n.
func (v Value) Member(key string, n *yaml.Node) Value {
	v.Node, v.Path = n, v.walk.rules.member(v.Path, key)
	return v
}

// Quote returns a value of the file in quotes, shortened as Show requires.
func (v Value) Quote(s string) string { return v.walk.rules.Show.quote(s) }

// Add adds a problem with the path and line of the value.
func (v Value) Add(format string, args ...any) {
	one := Problem{Path: v.Path, Line: v.Line, Message: fmt.Sprintf(format, args...)}
	v.walk.found.AddUpTo(maxProblems, one, fmt.Sprintf("more than %d problems: the rest is not listed", maxProblems))
}

// Check adds err as a problem, unless it is nil.
func (v Value) Check(err error) {
	if err != nil {
		v.Add("%s", err.Error())
	}
}

// Bad adds a problem: what the value must be and, as far as Show allows, what it is.
func (v Value) Bad(must string) {
	switch {
	case v.Kind == yaml.AliasNode:
		v.Add("must be written out, is a reference to an anchor")
	case v.walk.rules.Show == Nothing:
		v.Add("%s", must)
	case v.walk.rules.Show == Values:
		v.Add("%s, %s", must, v.describeByKind())
	default:
		v.Add("%s, %s", must, v.describeByTag())
	}
}

// describeByKind describes the value by its kind, without regard to tags.
func (v Value) describeByKind() string {
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

// describeByTag describes the value by its tag, but does not show a custom tag.
func (v Value) describeByTag() string {
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

// knownTags are the tags, besides null, that YAML gives to scalars without quotes.
var knownTags = []string{"!!int", "!!float", "!!bool", "!!timestamp", "!!merge"}
