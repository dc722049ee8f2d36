// SPDX-License-Identifier: Apache-2.0

package body

import (
	"sync"

	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

// scanner reads a request body once, in pieces with boundaries anywhere. It checks that
// the body is one JSON object in UTF-8, reads the fields that the decision needs, and
// measures the text. It keeps the current name or model and one bool per level of nesting,
// so that its memory does not depend on the size of the body.
type scanner struct {
	kind   target.Kind
	fields Fields
	model  span // the model's value
	seen   fieldSet
	text   textMeter

	state   scanState
	p       []byte  // the current piece
	i       int     // the position in p
	before  int     // bytes in earlier pieces
	marks   int     // bytes of a byte-order mark that were seen
	objects []bool  // the open objects (true) and arrays (false)
	member  *member // the top-level member whose value is scanned; nil: it is not read

	isName  bool    // the current string is the name of a member
	start   int     // the offset of the current string in the body
	keep    int     // how many bytes of the current string or number are kept
	raw     []byte  // those bytes
	length  int     // the length of the current string's text
	unit    [6]byte // an escape or a character that began at the end of a piece
	cut     int     // the number of bytes in unit
	number  numberState
	literal string // the rest of true, false or null
}

// scanState says what may follow.
type scanState uint8

const (
	atStart scanState = iota
	beforeValue
	beforeValueOrEnd // of an array
	beforeName
	beforeNameOrEnd // of an object
	beforeColon
	afterValue
	atEnd
	inString
	inNumber
	inLiteral
)

// maxDepth is how deeply values may be nested, as in encoding/json.
const maxDepth = 10_000

// maxKeptBuffer is the size of the largest buffer that returns to the pool with its scanner.
const maxKeptBuffer = 1 << 10

var scanners = sync.Pool{New: func() any { return &scanner{} }}

func newScanner(kind target.Kind) *scanner {
	s := scanners.Get().(*scanner)
	*s = scanner{
		kind: kind, fields: Fields{MaxTokens: -1, MaxCompletionTokens: -1},
		raw: s.raw[:0], objects: s.objects[:0],
	}
	return s
}

// release returns the scanner to the pool. Its results must have been read before.
func (s *scanner) release() {
	if cap(s.raw) <= maxKeptBuffer && cap(s.objects) <= maxKeptBuffer {
		scanners.Put(s)
	}
}

// scan scans the next piece of the body. Its error is a *refusal.Refusal.
func (s *scanner) scan(p []byte) (err error) {
	s.p, s.i = p, 0
	for s.i < len(p) && err == nil {
		switch s.state {
		case inString:
			err = s.scanString()
		case inNumber:
			err = s.scanNumber()
		case inLiteral:
			err = s.scanLiteral()
		default:
			err = s.scanOutside()
		}
	}
	s.before, s.p, s.i = s.before+s.i, nil, 0
	return err
}

// offset returns the scanner's position in the body.
func (s *scanner) offset() int { return s.before + s.i }

// finish checks that the body is complete.
func (s *scanner) finish() error {
	switch {
	case s.state == atStart:
		return refusal.RequestInvalid("the request body is empty")
	case s.state != atEnd:
		return s.invalid()
	case s.seen&fieldModel == 0:
		return refusal.RequestInvalid("the request body has no model")
	}
	return nil
}

// invalid returns the refusal for invalid JSON at the scanner's position.
func (s *scanner) invalid() error {
	return refusal.RequestInvalid("the request body is not valid JSON near byte %d", s.offset())
}

func (s *scanner) notUTF8() error {
	return refusal.RequestInvalid("the request body is not valid JSON: byte %d is not UTF-8", s.offset())
}

// scanOutside scans the piece up to the beginning of the next string, number or literal.
func (s *scanner) scanOutside() error {
	for i, c := range s.p[s.i:] {
		if c == ' ' || c == '\n' || c == '\r' || c == '\t' {
			continue
		}
		from := s.i
		s.i += i
		if err := s.structural(c); err != nil {
			return err
		}
		if s.state > atEnd {
			s.i++
			return nil
		}
		s.i = from
	}
	s.i = len(s.p)
	return nil
}

// structural handles a byte that is not in a string, number or literal, nor white space.
func (s *scanner) structural(c byte) error {
	switch s.state {
	case beforeValue:
		return s.beginValue(c)
	case beforeValueOrEnd:
		if c != ']' {
			return s.beginValue(c)
		}
		return s.close(false)
	case beforeName, beforeNameOrEnd:
		switch {
		case c == '"':
			s.beginString(true, s.nameLimit())
			return nil
		case c == '}' && s.state == beforeNameOrEnd:
			return s.close(true)
		}
	case beforeColon:
		if c == ':' {
			s.state = beforeValue
			s.text.colon(s)
			return nil
		}
	case afterValue:
		return s.separator(c)
	case atStart:
		return s.first(c)
	case atEnd:
		if beginsValue(c) {
			return refusal.RequestInvalid("the request body has data after its JSON object")
		}
	default: // in a string, number or literal: not called
	}
	if !mayBeginCharacter(c) {
		return s.notUTF8()
	}
	return s.invalid()
}

// byteOrderMark is skipped at the beginning of a body.
const byteOrderMark = "\ufeff"

// first handles a byte before the JSON object.
func (s *scanner) first(c byte) error {
	switch {
	case s.marks < len(byteOrderMark) && s.offset() == s.marks && c == byteOrderMark[s.marks]:
		s.marks++
		return nil
	case s.marks%len(byteOrderMark) != 0:
		return s.invalid()
	case c == '{':
		return s.beginValue(c)
	case beginsValue(c):
		return refusal.RequestInvalid("the request body must be a JSON object")
	case !mayBeginCharacter(c):
		return s.notUTF8()
	}
	return s.invalid()
}

// separator handles the character that follows a value.
func (s *scanner) separator(c byte) error {
	isObject := s.objects[len(s.objects)-1]
	switch c {
	case ',':
		s.state = beforeValue
		if isObject {
			s.endMember()
			s.state = beforeName
		}
		return nil
	case '}', ']':
		if isObject == (c == '}') {
			return s.close(isObject)
		}
	}
	return s.invalid()
}

// beginValue begins a value.
func (s *scanner) beginValue(c byte) error {
	if s.member != nil && len(s.objects) == 1 && beginsValue(c) && !s.member.mayBegin(c) {
		return s.member.wrongType()
	}
	switch {
	case c == '"':
		s.beginString(false, s.valueLimit())
	case c == '{':
		return s.open(true)
	case c == '[':
		return s.open(false)
	case c == '-' || isDigit(c):
		s.beginNumber(c)
	case c == 't':
		s.fields.Stream = s.fields.Stream || s.reads(fieldStream)
		s.state, s.literal = inLiteral, "true"[1:]
	case c == 'f':
		s.state, s.literal = inLiteral, "false"[1:]
	case c == 'n':
		s.state, s.literal = inLiteral, "null"[1:]
	case !mayBeginCharacter(c):
		return s.notUTF8()
	default:
		return s.invalid()
	}
	return nil
}

// beginsValue reports whether a JSON value may begin with c.
func beginsValue(c byte) bool {
	switch c {
	case '"', '{', '[', '-', 't', 'f', 'n':
		return true
	}
	return isDigit(c)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// open begins an object or an array.
func (s *scanner) open(isObject bool) error {
	if len(s.objects) == maxDepth {
		return s.invalid()
	}
	s.objects = append(s.objects, isObject)
	s.state = beforeValueOrEnd
	if isObject {
		s.state = beforeNameOrEnd
	}
	return nil
}

// close ends an object or an array.
func (s *scanner) close(isObject bool) error {
	if isObject {
		s.endMember()
	}
	s.objects = s.objects[:len(s.objects)-1]
	s.state = afterValue
	if len(s.objects) == 0 {
		s.state = atEnd
	}
	return nil
}

// endMember ends the value of a member.
func (s *scanner) endMember() {
	s.text.endMember(s)
	if len(s.objects) == 1 {
		s.member = nil
	}
}

// scanLiteral scans the part of true, false or null that is in the piece.
func (s *scanner) scanLiteral() error {
	for ; s.literal != "" && s.i < len(s.p); s.i++ {
		if s.p[s.i] != s.literal[0] {
			return s.invalid()
		}
		s.literal = s.literal[1:]
	}
	if s.literal == "" {
		s.state = afterValue
	}
	return nil
}
