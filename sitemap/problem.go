// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxProblems bounds the answer to a push in which everything is wrong: 8 MiB
// of commas would otherwise become gigabytes of explanations.
const maxProblems = 1000

// maxQuoted bounds how much of a bad value a message repeats.
const maxQuoted = 64

// Problem is one thing that is wrong with a map. An empty path is the whole
// document.
type Problem struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// String gives the path and the message on one line.
func (p Problem) String() string {
	if p.Path == "" {
		return "the map " + p.Message
	}
	return p.Path + ": " + p.Message
}

// Problems is everything that is wrong with a map. After the first 1,000 one
// last entry says that the rest is not listed.
type Problems []Problem //nolint:errname // a list that is an error

// Error gives the first few problems on one line.
func (p Problems) Error() string {
	const shown = 5
	var b strings.Builder
	for i, one := range p[:min(len(p), shown)] {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(one.String())
	}
	if more := len(p) - shown; more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

// collector gathers problems up to the limit.
type collector struct {
	found Problems
	full  bool
}

func (c *collector) add(path, message string) {
	if c.full {
		return
	}
	if len(c.found) == maxProblems {
		c.full = true
		c.found = append(c.found, Problem{Message: fmt.Sprintf(
			"has more problems: only the first %d are listed", maxProblems)})
		return
	}
	c.found = append(c.found, Problem{Path: path, Message: message})
}

// quote makes a value of the map safe to show, and short.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	end := maxQuoted
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return strconv.Quote(s[:end]) + "..."
}

// joinPath appends a member to a path: dotted when it reads as a field, in
// brackets and quoted otherwise.
func joinPath(path, member string) string {
	if !plainMember(member) {
		return path + "[" + quote(member) + "]"
	}
	if path == "" {
		return member
	}
	return path + "." + member
}

func plainMember(s string) bool {
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		digit := c >= '0' && c <= '9'
		if !letter && !digit && c != '_' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= maxQuoted
}
