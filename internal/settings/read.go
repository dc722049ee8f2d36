// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Mapping calls f for each entry of a mapping. Keys must be strings; if one occurs more than
// once, f is called only for the first. Mapping reports whether v is a mapping.
func (v Value) Mapping(f func(key *yaml.Node, entry Value)) bool {
	if v.isLeftOut() {
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
			entry.At(key).Add("is given twice: first in line %d", line)
			continue
		}
		first[key.Value] = key.Line
		f(key, entry)
	}
	return true
}

// isLeftOut reports whether the value is absent and that is allowed.
func (v Value) isLeftOut() bool { return v.walk.rules.EmptyOK && v.Absent() }

// Fields reads a mapping: it calls the function of each known key. Unknown keys and missing
// required keys are problems.
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
	if v.isLeftOut() {
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

// Name reads a name. It returns "" if the name is invalid.
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

// CheckName reports whether s is a valid name, and adds a problem if it is not.
func (v Value) CheckName(s string) bool {
	problem := v.walk.rules.NameProblem(s)
	if problem != "" {
		v.Add("%s", problem)
	}
	return problem == ""
}

// Number reads a whole number from 1 to most. It returns 0 if the number is invalid.
func (v Value) Number(most int64) int64 {
	var n int64
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!int" || v.Decode(&n) != nil || n < 1 || n > most {
		v.Bad(fmt.Sprintf("must be a whole number from 1 to %d", most))
		return 0
	}
	return n
}

// Word reads a scalar of any type, as it is written in the file.
func (v Value) Word() string {
	if v.Kind != yaml.ScalarNode || v.Absent() {
		v.Bad(MustBeString)
		return ""
	}
	return v.Value
}

// Checked reads a string, and adds a problem if check returns an error.
func (v Value) Checked(check func(string) error) string {
	if !IsString(v.Node) {
		v.Bad(MustBeString)
		return ""
	}
	v.Check(check(v.Value))
	return v.Value
}

// Bool reads true or false.
func (v Value) Bool() bool {
	is := func(word string) bool { return v.Kind == yaml.ScalarNode && strings.EqualFold(v.Value, word) }
	if !is("true") && !is("false") {
		v.Bad("must be true or false")
	}
	return is("true")
}

// Duration reads a duration between least and most. If it is invalid, Duration returns 0 and
// adds a problem with the message must.
func (v Value) Duration(least, most time.Duration, must string) time.Duration {
	d, err := time.ParseDuration(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || d < least || d > most {
		v.Bad(must)
		return 0
	}
	return d
}

// Size reads a number of bytes from 1 to most. It returns 0 if the number is invalid.
func (v Value) Size(most int64) int64 {
	n, err := ParseBytes(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || n < 1 || int64(n) > most {
		v.Bad("must be a size such as 24GiB")
		return 0
	}
	return int64(n)
}
