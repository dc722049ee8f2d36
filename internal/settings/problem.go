// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"strings"
)

// maxProblems is how many problems of a file are listed.
const maxProblems = 100

// Problem is one thing that is wrong with settings.
type Problem struct {
	// Path is the place of the problem: a path in a document, the name of a field, or a
	// flag with its dashes. Empty: the whole document.
	Path string `json:"path"`
	// Line is the line in the document, 0 if there is none.
	Line    int    `json:"line,omitzero"`
	Message string `json:"message"`
}

// String returns the problem on one line.
func (p Problem) String() string {
	text := p.Message
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Line > 0 {
		text = fmt.Sprintf("%s (line %d)", text, p.Line)
	}
	return text
}

// Problems is a list of problems.
type Problems []Problem //nolint:errname // a list that is an error

// Error returns one line for each problem.
func (p Problems) Error() string { return p.Join("\n") }

// Join returns the problems with sep between them.
func (p Problems) Join(sep string) string {
	texts := make([]string, len(p))
	for i, problem := range p {
		texts[i] = problem.String()
	}
	return strings.Join(texts, sep)
}

// Err returns the problems as an error, nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// Add adds a problem at path.
func (p *Problems) Add(path, format string, args ...any) {
	*p = append(*p, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// Check adds err as a problem at path, unless it is nil.
func (p *Problems) Check(path string, err error) {
	if err != nil {
		*p = append(*p, Problem{Path: path, Message: err.Error()})
	}
}

// AddUpTo adds a problem unless there are limit problems already. Then it adds one last
// entry with the message rest, once.
func (p *Problems) AddUpTo(limit int, problem Problem, rest string) {
	switch {
	case len(*p) < limit:
		*p = append(*p, problem)
	case len(*p) == limit:
		*p = append(*p, Problem{Message: rest})
	}
}
