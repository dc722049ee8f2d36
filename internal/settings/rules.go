// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxName = 256 // bytes

// Rules has the options for reading one kind of file.
type Rules struct {
	// MaxBytes is the largest size of a file, 0 for no limit.
	MaxBytes int
	// Show is how much of a file messages may quote.
	Show Show
	// EmptyOK: a key without a value stands for an empty mapping or list. A file
	// without any content is refused.
	EmptyOK bool
	// NothingOK: a file without any content is valid, and not read.
	NothingOK bool
	// Brackets: a key that is not a plain word is put in brackets in paths.
	Brackets bool
}

// Show is how much of a file messages may quote.
type Show int

// The values of Show. Each allows more than the one before it.
const (
	// Nothing is for files of secrets: messages have lines, no paths and no values.
	Nothing Show = iota
	// Little is for files into which a secret may be pasted: messages have short
	// values and names, only the first bytes of longer ones, and no tags.
	Little
	// Values is for files without secrets: messages have the beginning of a long value.
	Values
)

// limits returns how many bytes a value may have to be shown whole, and how many bytes are
// shown of a longer one.
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

// quote returns a value of the file in quotes, shortened if necessary.
func (s Show) quote(text string) string {
	whole, end := s.limits()
	if len(text) <= whole {
		return strconv.Quote(text)
	}
	return strconv.Quote(Cut(text, end)) + "…"
}

// Cut returns the first n bytes of s, or a few less if that would split a character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// plain reports whether a name can be in a path without quotes.
func (s Show) plain(name string) bool {
	whole, _ := s.limits()
	return name != "" && len(name) <= whole && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-./:", r)
	})
}

// member returns the path of a mapping's entry. A key that is not a plain word is quoted.
func (r Rules) member(path, key string) string {
	switch plain := r.Show.plain(key); {
	case r.Show == Nothing:
		return ""
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

// NameProblem returns what is wrong with a name, "" if it is valid. Names are used in logs,
// as labels of metrics and in the sibling map.
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
