// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"encoding/json/jsontext"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

// Fields are what the decision needs of a body. They are all at its top level.
type Fields struct {
	Model               string
	Stream              bool
	MaxTokens           int64 // -1: not given
	MaxCompletionTokens int64 // -1: not given; max_output_tokens counts as it, the larger of both
}

// fieldSet is a set of the fields that the decision needs.
type fieldSet uint8

const (
	fieldModel fieldSet = 1 << iota
	fieldStream
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens

	fieldCounts = fieldMaxTokens | fieldMaxCompletionTokens | fieldMaxOutputTokens
)

// member is a member of the top level that is read.
type member struct {
	name  string
	field fieldSet // 0: the decision does not need it
	text  textUse
}

// members are all members that are read. Text in others is not measured.
var members = []member{
	{name: "model", field: fieldModel},
	{name: "stream", field: fieldStream},
	{name: "max_tokens", field: fieldMaxTokens},
	{name: "max_completion_tokens", field: fieldMaxCompletionTokens},
	{name: "max_output_tokens", field: fieldMaxOutputTokens},
	{name: "messages", text: textStrings},
	{name: "system", text: textStrings},
	{name: "prompt", text: textStrings},
	{name: "input", text: textStrings},
	{name: "instructions", text: textStrings},
	{name: "query", text: textStrings},
	{name: "documents", text: textStrings},
	{name: "tools", text: textWhole},
	{name: "functions", text: textWhole},
}

const (
	// maxName is longer than the name of any member that is read, with all its letters
	// escaped.
	maxName = 256
	// maxModel is the limit for the model's value, as it is in the body.
	maxModel = 128 << 10
)

// keepOfName returns how much of a name is kept: enough to recognize the names that are
// read.
func (s *scanner) keepOfName() int {
	if len(s.objects) == 1 || s.text.looksForNames() {
		return maxName
	}
	return 0
}

func (s *scanner) keepOfValue() int {
	if s.reads(fieldModel) {
		return maxModel + 1
	}
	return 0
}

// reads reports whether the value is that of one of these fields.
func (s *scanner) reads(f fieldSet) bool {
	return s.member != nil && s.member.field&f != 0 && len(s.objects) == 1
}

// takes reports whether the member's value may begin with c.
func (m *member) takes(c byte) bool {
	switch m.field {
	case 0:
		return true
	case fieldModel:
		return c == '"'
	case fieldStream:
		return c == 't' || c == 'f' || c == 'n'
	default:
		return isDigit(c) || c == '-' || c == 'n'
	}
}

func (m *member) wrongType() error {
	return refusal.RequestInvalid("%s in the request body is empty or has the wrong type", m.name)
}

// unquoted returns the string that was kept, as an engine reads it. ok is false when it
// has half of a surrogate pair, or was cut inside of an escape.
func (s *scanner) unquoted() (text []byte, ok bool) {
	if bytes.IndexByte(s.raw, '\\') < 0 {
		return s.raw, true
	}
	quoted := slices.Concat([]byte{'"'}, s.raw, []byte{'"'})
	text, err := jsontext.AppendUnquote(nil, quoted)
	return text, err == nil
}

// named handles the name of a member.
func (s *scanner) named() error {
	if len(s.objects) > 1 {
		s.text.named(s)
		return nil
	}
	if len(s.raw) == maxName {
		return s.namedLong()
	}
	name, ok := s.unquoted()
	if !ok {
		return refusal.RequestInvalid("the request body is not valid JSON: the name near byte %d has half of a surrogate pair", s.start)
	}
	for i := range members {
		if m := &members[i]; m.name == string(name) {
			return s.begin(m)
		}
	}
	return s.lookalike(name)
}

// maxLetters is how many letters the longest name of a member has.
const maxLetters = len("maxcompletiontokens")

// namedLong handles a name of which only the beginning was kept. It is longer than any that
// is read, unless most of it is - and _, which the readers of some engines ignore.
func (s *scanner) namedLong() error {
	if i := bytes.LastIndexByte(s.raw, '\\'); i > len(s.raw)-len(`\u0000`) {
		s.raw = s.raw[:i] // the escape may be incomplete
	}
	name, ok := s.unquoted()
	if !ok {
		return nil
	}
	folded, _, ok := fold(nil, name)
	if !ok || len(folded) > maxLetters {
		return nil
	}
	return refusal.RequestInvalid("the request body has a name of %d bytes or more that begins with %q: engines may take it for another one", maxName, name[:10])
}

// begin begins a member that is read.
func (s *scanner) begin(m *member) error {
	switch {
	case !s.isRead(m):
		return nil
	case s.seen&m.field != 0:
		return refusal.RequestInvalid("the request body has more than one %s", m.name)
	}
	s.seen |= m.field
	s.member = m
	return nil
}

// isRead reports whether a member is read in a request of this kind.
func (s *scanner) isRead(m *member) bool { return m.field != fieldStream || s.kind == target.Chat }

// lookalike refuses a name that an engine may take for one that is read: most readers in
// Go ignore the case of letters.
func (s *scanner) lookalike(name []byte) error {
	if isLowercase(name) {
		return nil // no reader takes it for another name
	}
	var buffer [maxName]byte
	folded, delimiters, ok := fold(buffer[:0], name)
	if !ok {
		return nil
	}
	for i := range members {
		m := &members[i]
		if !sameWithoutDelimiters(m.name, folded) || !s.isRead(m) {
			continue
		}
		// maxTokens is another name, which some engines have beside max_tokens.
		if delimiters >= strings.Count(m.name, "_") {
			return refusal.RequestInvalid("the request body has the name %q, which engines may take for %s: write %s", name, m.name, m.name)
		}
	}
	return nil
}

func isLowercase(name []byte) bool {
	for _, c := range name {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}

// sameWithoutDelimiters reports whether the name of a member, folded, is folded.
func sameWithoutDelimiters(name string, folded []byte) bool {
	for i := range len(name) {
		if name[i] == '_' {
			continue
		}
		if len(folded) == 0 || folded[0] != name[i] {
			return false
		}
		folded = folded[1:]
	}
	return len(folded) == 0
}

// fold appends a name in lower case and without - and _, which it counts. ok is false when
// a letter is in no name that is read. It folds what encoding/json, Python and JavaScript
// fold when they ignore case, in either direction, and what a Turkish locale folds.
func fold(to, name []byte) (folded []byte, delimiters int, ok bool) {
	for len(name) > 0 {
		if c := name[0]; c >= 'a' && c <= 'z' {
			to, name = append(to, c), name[1:]
			continue
		}
		r, size := utf8.DecodeRune(name)
		name = name[size:]
		switch r {
		case '-', '_':
			delimiters++
		case 'ß', 'ẞ':
			to = append(to, "ss"...)
		case 'ﬅ', 'ﬆ':
			to = append(to, "st"...)
		case 'ı', 'İ':
			to = append(to, 'i')
		default:
			for first := r; r >= utf8.RuneSelf; {
				if r = unicode.SimpleFold(r); r == first {
					return nil, 0, false
				}
			}
			to = utf8.AppendRune(to, unicode.ToLower(r))
		}
	}
	return to, delimiters, true
}

func (s *scanner) readModel() error {
	if len(s.raw) > maxModel {
		return refusal.RequestInvalid("model in the request body is longer than %d bytes", maxModel)
	}
	text, ok := s.unquoted()
	if !ok {
		return refusal.RequestInvalid("the request body is not valid JSON: model has half of a surrogate pair")
	}
	if len(text) == 0 {
		return s.member.wrongType()
	}
	s.fields.Model = string(text)
	return nil
}

// readCount reads a number of tokens. A negative one means none: some clients send -1 for
// no limit.
func (s *scanner) readCount() error {
	value, err := strconv.ParseFloat(string(s.raw), 64)
	switch {
	case value < 0:
		return nil
	case err != nil, len(s.raw) == maxNumber:
		return s.member.wrongType()
	}
	n := int64(min(value, 1<<53))
	if s.reads(fieldMaxTokens) {
		s.fields.MaxTokens = n
	} else {
		s.fields.MaxCompletionTokens = max(s.fields.MaxCompletionTokens, n)
	}
	return nil
}
