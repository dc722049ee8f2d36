// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdgate/holdgate/internal/settings"
)

// maxProblems is how many problems of a push are listed. Without a limit, 8 MiB of commas
// would become gigabytes of messages.
const maxProblems = 1000

// maxQuoted is how many bytes of an invalid value a message quotes.
const maxQuoted = 64

// Problem is one problem of a map. An empty path stands for the whole document.
type Problem = settings.Problem

// Problems is all problems of a map. After the first 1,000 there is one last entry, which
// says that the rest is not listed.
type Problems []Problem //nolint:errname // a list that is an error

// Lines returns the problems, one line each.
func (p Problems) Lines() []string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
		if problem.Path == "" {
			lines[i] = "the map " + problem.Message
		}
	}
	return lines
}

// Error returns the first few problems on one line.
func (p Problems) Error() string {
	const shown = 5
	text := strings.Join(p[:min(len(p), shown)].Lines(), "; ")
	if more := len(p) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// collector collects problems up to the limit.
type collector struct{ found settings.Problems }

func (c *collector) full() bool { return len(c.found) > maxProblems }

func (c *collector) add(path, message string) {
	c.found.AddUpTo(maxProblems, Problem{Path: path, Message: message},
		fmt.Sprintf("has more problems: only the first %d are listed", maxProblems))
}

// quote returns a value of the map in quotes, shortened to maxQuoted bytes.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return strconv.Quote(settings.Cut(s, maxQuoted)) + "..."
}

// joinPath appends a member to a path: after a dot if it looks like a field name, otherwise
// quoted and in brackets.
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
