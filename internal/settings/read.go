// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Mapping calls f for each entry of a mapping, of those with the same key for the first
// alone. It reports whether v is a mapping. A key must be a string.
func (v Value) Mapping(f func(key *yaml.Node, entry Value)) bool {
	if v.leftOut() {
		return true
	}
	if !isMapping(v.Node) {
		v.Bad("must be a mapping")
		return false
	}
	first := make(map[string]int, len(v.Content)/2)
	for i := 0; i+1 < len(v.Content); i += 2 {
		key, n := v.Content[i], v.Content[i+1]
		if !IsString(key) {
			v.At(key).Bad("each key " + MustBeString)
			continue
		}
		entry := v.Member(key.Value, n)
		if line, again := first[key.Value]; again {
			entry.At(key).Add("is there twice: it stands in line %d", line)
			continue
		}
		first[key.Value] = key.Line
		f(key, entry)
	}
	return true
}

// leftOut reports whether the value may be left out, and is.
func (v Value) leftOut() bool { return v.walk.rules.EmptyOK && v.Absent() }

// Fields calls the function of each known key. Required keys must be there.
func (v Value) Fields(known map[string]func(Value), required ...string) {
	there := map[string]bool{}
	isMapping := v.Mapping(func(key *yaml.Node, entry Value) {
		there[key.Value] = true
		if read := known[key.Value]; read != nil {
			read(entry)
			return
		}
		entry.At(key).Add("is not known")
	})
	for _, field := range required {
		if isMapping && !there[field] {
			v.Add("needs %s", field)
		}
	}
}

// List calls f for each entry of a list.
func (v Value) List(f func(Value)) {
	if v.leftOut() {
		return
	}
	if v.Kind != yaml.SequenceNode || v.ShortTag() != "!!seq" {
		v.Bad("must be a list")
		return
	}
	for i, n := range v.Content {
		f(Value{n, fmt.Sprintf("%s[%d]", v.Path, i), v.walk})
	}
}

// Name reads a name. It returns "" for a bad one.
func (v Value) Name() string {
	if !IsString(v.Node) {
		v.Bad(MustBeString)
		return ""
	}
	if !v.CheckName(v.Value) {
		return ""
	}
	return v.Value
}

// CheckName reports whether s is a name, and adds a problem if it is not.
func (v Value) CheckName(s string) bool {
	problem := v.walk.rules.NameProblem(s)
	if problem != "" {
		v.Add("%s", problem)
	}
	return problem == ""
}

// Number reads a whole number from 1 to most. It returns 0 for a bad one.
func (v Value) Number(most int64) int64 {
	var n int64
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!int" || v.Decode(&n) != nil || n < 1 || n > most {
		v.Bad(fmt.Sprintf("must be a whole number from 1 to %d", most))
		return 0
	}
	return n
}
