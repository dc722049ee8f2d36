// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxName = 256 // bytes

// Rules are how files of one kind are read.
type Rules struct {
	// MaxBytes is the largest file, 0 for no limit.
	MaxBytes int
	// Show is how much of a file its messages may repeat.
	Show Show
	// EmptyOK: what is left out after its key is an empty mapping or list. A file
	// that says nothing at all is refused.
	EmptyOK bool
	// NothingOK: a file that says nothing at all is fine, and not read.
	NothingOK bool
	// Brackets: in a path, a key that is no plain word stands in brackets.
	Brackets bool
}

// Show is how much of a file its messages may repeat.
type Show int

// Each shows more than the one before it.
const (
	// Nothing is for files of secrets: messages have lines, and none of the words.
	Nothing Show = iota
	// Little is for files into which a secret may be pasted: messages have short
	// values and names. Longer ones are shown by their first bytes, tags not at all.
	Little
	// Values is for files without secrets: a long value is shown by its beginning.
	Values
)

// limits are the longest value that is shown whole, and how many bytes are shown
// of a longer one.
func (s Show) limits() (whole, part int) {
	switch s {
	case Values:
		return 64, 64
	case Little:
		return 40, 8
	default:
		return 0, 0
	}
}

// quote makes a value of the file safe to show, and short.
func (s Show) quote(text string) string {
	whole, end := s.limits()
	if len(text) <= whole {
		return strconv.Quote(text)
	}
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return strconv.Quote(text[:end]) + "…"
}

// plain says whether a name needs no quotes in a path.
func (s Show) plain(name string) bool {
	whole, _ := s.limits()
	return name != "" && len(name) <= whole && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-./:", r)
	})
}

// member is the path of a mapping's entry. A key that would not be read as one
// word is quoted.
func (r Rules) member(path, key string) string {
	switch plain := r.Show.plain(key); {
	case !plain && r.Brackets:
		return path + "[" + r.Show.quote(key) + "]"
	case !plain:
		key = r.Show.quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// NameProblem says what is wrong with a name, which must suit a log, a metric's
// label and the sibling map. A good one has no problem.
func (r Rules) NameProblem(s string) string {
	switch {
	case s == "":
		return "must not be empty"
	case len(s) > maxName:
		return fmt.Sprintf("must have at most %d bytes, has %d", maxName, len(s))
	case !utf8.ValidString(s), strings.ContainsFunc(s, unicode.IsControl):
		return "must not contain control characters, is " + r.Show.quote(s)
	}
	return ""
}
