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

// fieldSet is a bit set of the fields that the decision needs.
type fieldSet uint8

const (
	fieldModel fieldSet = 1 << iota
	fieldStream
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens

	fieldCounts = fieldMaxTokens | fieldMaxCompletionTokens | fieldMaxOutputTokens
)

// member describes a member of the top-level object that is read.
type member struct {
	name  string
	field fieldSet // 0: only its text is measured
	text  textUse
}

// members are all members that are read.
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
	// maxName is more bytes than any name that is read has with all its letters escaped.
	maxName = 256
	// maxModel limits the bytes of the model's value in the body.
	maxModel = 128 << 10
)

// nameLimit returns how many bytes of the next name are kept: enough to recognize the names
// that are read.
func (s *scanner) nameLimit() int {
	if len(s.objects) == 1 || s.text.isText() {
		return maxName
	}
	return 0
}

// valueLimit returns how many bytes of the next string value are kept.
func (s *scanner) valueLimit() int {
	if s.reads(fieldModel) {
		return maxModel + 1
	}
	return 0
}

// reads reports whether the current value is that of one of these fields.
func (s *scanner) reads(f fieldSet) bool {
	return s.member != nil && s.member.field&f != 0 && len(s.objects) == 1
}

// mayBegin reports whether the member's value may begin with c.
func (m *member) mayBegin(c byte) bool {
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

// unquoted returns the string in raw, unescaped. ok is false when it has half of a surrogate
// pair, or ends inside of an escape.
func (s *scanner) unquoted() (text []byte, ok bool) {
	if bytes.IndexByte(s.raw, '\\') < 0 {
		return s.raw, true
	}
	quoted := slices.Concat([]byte{'"'}, s.raw, []byte{'"'})
	text, err := jsontext.AppendUnquote(nil, quoted)
	return text, err == nil
}

// endName handles the end of a member's name.
func (s *scanner) endName() error {
	if len(s.objects) > 1 {
		s.text.endName(s)
		return nil
	}
	if len(s.raw) == maxName {
		return s.endLongName()
	}
	name, ok := s.unquoted()
	if !ok {
		return refusal.RequestInvalid("the request body is not valid JSON: the name near byte %d has half of a surrogate pair", s.start)
	}
	for i := range members {
		if m := &members[i]; m.name == string(name) {
			return s.beginMember(m)
		}
	}
	return s.lookalike(name)
}

// maxLetters is the number of letters in the longest name that is read.
const maxLetters = len("maxcompletiontokens")

// endLongName handles a name of which only the beginning was kept. It is too long for one
// that is read, unless most of it is - and _, which the JSON decoders of some engines
// ignore.
func (s *scanner) endLongName() error {
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

// beginMember begins the value of a member in members.
func (s *scanner) beginMember(m *member) error {
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

// isRead reports whether a member is read in a request of this kind: only chat has stream.
func (s *scanner) isRead(m *member) bool { return m.field != fieldStream || s.kind == target.Chat }

// lookalike refuses a name that an engine may take for one that is read, because most JSON
// decoders in Go ignore case.
func (s *scanner) lookalike(name []byte) error {
	if isLowercase(name) {
		return nil // no decoder takes it for another name
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
		// maxTokens is a name of its own, which some engines accept beside max_tokens.
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

// sameWithoutDelimiters reports whether the name of a member without its _ equals folded.
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

// fold appends a name in lower case and without - and _, and returns how many of those it
// had. ok is false when the name has a letter that no name that is read has. It folds what
// encoding/json, Python and JavaScript fold when they ignore case, in either direction, and
// what a Turkish locale folds.
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

// readModel sets the model from the string in raw.
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

// readCount sets a token limit from the number in raw. A negative number is ignored: some
// clients send -1 for no limit.
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
