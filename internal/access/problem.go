// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxProblems bounds what a file in which everything is wrong makes of itself.
	maxProblems = 100
	// maxQuoted is shorter than any key of NewKey: a longer value may be one, and
	// is shown by its first maxShown bytes.
	maxQuoted = 40
	maxShown  = 8
)

// Problem is one thing that is wrong with a keys file. Without a path it is the
// whole document, without a line it has no single place.
type Problem struct {
	Path    string
	Line    int
	Message string
}

// String gives the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Line > 0 {
		fmt.Fprintf(&b, " (line %d)", p.Line)
	}
	return b.String()
}

// Problems is everything that is wrong with a file, one entry each. After the
// first hundred a last one says that the rest is not listed.
type Problems []Problem //nolint:errname // a list that is an error

// Error gives one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// quote makes a value of the file safe to show, and short.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	end := maxShown
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return strconv.Quote(s[:end]) + "…"
}

// plain says whether a name needs no quotes in a path.
func plain(s string) bool {
	return s != "" && len(s) <= maxQuoted && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-./:", r)
	})
}
