// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"fmt"
	"strings"
)

// maxProblems bounds what a file in which everything is wrong makes of itself.
const maxProblems = 100

// Problem is one thing that is wrong with a file. Without a path it is the whole
// document, without a line it has no single place.
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

func (p *Problems) add(one Problem) {
	switch len(*p) {
	case maxProblems:
		*p = append(*p, Problem{Message: fmt.Sprintf("more than %d problems: the rest is not listed", maxProblems)})
	case maxProblems + 1:
	default:
		*p = append(*p, one)
	}
}
