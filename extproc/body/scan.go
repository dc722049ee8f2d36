// SPDX-License-Identifier: Apache-2.0

package body

import (
	"sync"

	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

// scanner reads a request body once, in pieces that may be cut anywhere. It checks that
// the body is one JSON object in UTF-8, reads the fields that the decision needs, and
// measures the text. It keeps the present name or model and one bool per level of nesting,
// so that its memory does not depend on the size of the body.
type scanner struct {
	kind   target.Kind
	fields Fields
	model  span // the model's value
	seen   fieldSet
	text   textMeter

	state   scanState
	p       []byte  // the present piece
	i       int     // where in it the scanner is
	before  int     // bytes of the pieces before
	marks   int     // bytes of a byte-order mark that were seen
	objects []bool  // the open values: true is an object, false an array
	member  *member // the top-level member whose value is scanned; nil: it is not read

	isName  bool
	start   int // of the present string, in the body
	keep    int // how much of the string or number is kept
	raw     []byte
	length  int     // bytes of the string's text
	unit    [6]byte // an escape or a character that a piece has cut
	cut     int     // number of bytes in unit
	number  numberState
	literal string // the rest of true, false or null
}

// scanState is what may come next.
type scanState uint8

const (
	atStart scanState = iota
	beforeValue
	beforeValueOrEnd // of an array
	beforeName
	beforeNameOrEnd // of an object
	beforeColon
	behindValue
	atEnd
	inString
	inNumber
	inLiteral
)

// maxDepth is how deep values may be nested, as in encoding/json.
const maxDepth = 10_000

// maxKeptBuffer is the largest buffer of a scanner that goes back to the pool.
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

// release gives the scanner back. Its results must have been read before.
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
			err = s.inside()
		case inNumber:
			err = s.digits()
		case inLiteral:
			err = s.letters()
		default:
			err = s.outside()
		}
	}
	s.before, s.p, s.i = s.before+s.i, nil, 0
	return err
}

// offset returns where in the body the scanner is.
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

// invalid refuses the body because of the byte that is scanned.
func (s *scanner) invalid() error {
	return refusal.RequestInvalid("the request body is not valid JSON near byte %d", s.offset())
}

func (s *scanner) notUTF8() error {
	return refusal.RequestInvalid("the request body is not valid JSON: byte %d is not UTF-8", s.offset())
}

// outside scans the piece up to the next string, number or literal.
func (s *scanner) outside() error {
	for i, c := range s.p[s.i:] {
		if c == ' ' || c == '\n' || c == '\r' || c == '\t' {
			continue
		}
		from := s.i
		s.i += i
		if err := s.structure(c); err != nil {
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

func (s *scanner) structure(c byte) error {
	switch s.state {
	case beforeValue:
		return s.value(c)
	case beforeValueOrEnd:
		if c != ']' {
			return s.value(c)
		}
		return s.close(false)
	case beforeName, beforeNameOrEnd:
		switch {
		case c == '"':
			s.beginString(true, s.keepOfName())
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
	case behindValue:
		return s.separator(c)
	case atStart:
		return s.first(c)
	case atEnd:
		if beginsValue(c) {
			return refusal.RequestInvalid("the request body has data after its JSON object")
		}
	default: // inside of something
	}
	if !mayBeginCharacter(c) {
		return s.notUTF8()
	}
	return s.invalid()
}

// byteOrderMark is skipped at the beginning of a body.
const byteOrderMark = "\ufeff"

func (s *scanner) first(c byte) error {
	switch {
	case s.marks < len(byteOrderMark) && s.offset() == s.marks && c == byteOrderMark[s.marks]:
		s.marks++
		return nil
	case s.marks%len(byteOrderMark) != 0:
		return s.invalid()
	case c == '{':
		return s.value(c)
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

// value begins a value.
func (s *scanner) value(c byte) error {
	if s.member != nil && len(s.objects) == 1 && beginsValue(c) && !s.member.takes(c) {
		return s.member.wrongType()
	}
	switch {
	case c == '"':
		s.beginString(false, s.keepOfValue())
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
	s.state = behindValue
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

// letters scans what the piece has of true, false or null.
func (s *scanner) letters() error {
	for ; s.literal != "" && s.i < len(s.p); s.i++ {
		if s.p[s.i] != s.literal[0] {
			return s.invalid()
		}
		s.literal = s.literal[1:]
	}
	if s.literal == "" {
		s.state = behindValue
	}
	return nil
}
