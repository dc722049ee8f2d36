// SPDX-License-Identifier: Apache-2.0

package body

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// beginString begins a string, of which up to keep bytes are kept.
func (s *scanner) beginString(isName bool, keep int) {
	s.state, s.isName, s.keep = inString, isName, keep
	s.start, s.length, s.raw = s.offset(), 0, s.raw[:0]
}

// keepBytes keeps bytes of the current string or number, up to its limit.
func (s *scanner) keepBytes(p []byte) {
	if s.keep > 0 {
		s.raw = append(s.raw, p[:min(len(p), s.keep-len(s.raw))]...)
	}
}

// scanString scans the part of a string that is in the piece. It accepts half of a surrogate
// pair.
func (s *scanner) scanString() error { //nolint:gocyclo // one loop: most of the time is spent here
	if s.cut > 0 {
		return s.completeUnit()
	}
	p, from := s.p, s.i
	n, escaped := from, 0 // escaped: by how many bytes the escapes are longer than their text
	for n < len(p) {
		switch c := p[n]; {
		case c == '"':
			s.length += n - from - escaped
			s.keepBytes(p[from:n])
			s.i = n + 1
			return s.endString()
		case c == '\\' && n+1 < len(p) && isEscape[p[n+1]]:
			n += 2
			escaped++
		case c >= ' ' && c < utf8.RuneSelf && c != '\\':
			n += plainPrefix(p[n:])
		case c >= 0xc2 && c < 0xe0 && n+1 < len(p) && p[n+1]&0xc0 == 0x80:
			n += 2
		case c > 0xe0 && c < 0xed && n+2 < len(p) && p[n+1]&0xc0 == 0x80 && p[n+2]&0xc0 == 0x80:
			n += 3
		default:
			size, ok := unitOf(p[n:])
			switch {
			case !ok:
				s.i = n
				return s.badUnit(c)
			case size == 0:
				s.length += n - from - escaped
				s.cut = copy(s.unit[:], p[n:])
				s.i = len(p)
				s.keepBytes(p[from:])
				return nil
			}
			escaped += size - textOf(p[n:n+size])
			n += size
		}
	}
	s.length += n - from - escaped
	s.keepBytes(p[from:])
	s.i = n
	return nil
}

// completeUnit adds a byte to the unit that began at the end of an earlier piece.
func (s *scanner) completeUnit() error {
	s.unit[s.cut] = s.p[s.i]
	s.cut++
	size, ok := unitOf(s.unit[:s.cut])
	switch {
	case !ok:
		s.i -= s.cut - 1 // the error is where the unit begins
		return s.badUnit(s.unit[0])
	case size > 0:
		s.length += textOf(s.unit[:size])
		s.cut = 0
	}
	s.keepBytes(s.p[s.i : s.i+1])
	s.i++
	return nil
}

// textOf returns the length in bytes of the text of an escape or a character. \u counts as
// three bytes, because it may be any character, and every other escape as one.
func textOf(unit []byte) int {
	switch {
	case unit[0] != '\\':
		return len(unit)
	case unit[1] == 'u':
		return 3
	}
	return 1
}

// isEscape is true for the characters that follow the backslash in an escape of two bytes.
var isEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// badUnit returns the refusal for bytes that begin with c and are neither an escape nor a
// character.
func (s *scanner) badUnit(c byte) error {
	if c >= utf8.RuneSelf {
		return s.notUTF8()
	}
	return s.invalid()
}

// unitOf returns the size of the escape or the character at the beginning of b, 0 when b
// ends before it does. ok is false when b begins with neither.
func unitOf(b []byte) (size int, ok bool) {
	switch {
	case b[0] < ' ':
		return 0, false
	case b[0] != '\\':
		r, size := utf8.DecodeRune(b)
		if r != utf8.RuneError || size > 1 {
			return size, true
		}
		return 0, !utf8.FullRune(b)
	case len(b) == 1:
		return 0, true
	case b[1] != 'u':
		return 2, isEscape[b[1]]
	}
	for _, c := range b[2:min(len(b), 6)] {
		if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
			return 0, false
		}
	}
	if len(b) < 6 {
		return 0, true
	}
	return 6, true
}

// mayBeginCharacter reports whether a character of UTF-8 may begin with c.
func mayBeginCharacter(c byte) bool { return c < utf8.RuneSelf || c >= 0xc2 && c < 0xf5 }

// endString handles the end of a string.
func (s *scanner) endString() error {
	if s.isName {
		s.state = beforeColon
		return s.endName()
	}
	s.state = afterValue
	if s.reads(fieldModel) {
		s.model = span{from: s.start, to: s.offset()}
		return s.readModel()
	}
	s.text.endString(s)
	return nil
}

// plainPrefix returns how many bytes at the beginning of b are ASCII, without quotes,
// backslashes and control characters. It tests eight bytes at once.
func plainPrefix(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(b[n:])
		quote, backslash := x^(ones*'"'), x^(ones*'\\')
		special := (x - ones*' ') &^ x
		special |= (quote - ones) &^ quote
		special |= (backslash - ones) &^ backslash
		special |= x
		// A borrow may mark bytes above the first that is special, never below.
		if special &= tops; special != 0 {
			return n + bits.TrailingZeros64(special)/8
		}
	}
	for n < len(b) && b[n] >= ' ' && b[n] < 0x80 && b[n] != '"' && b[n] != '\\' {
		n++
	}
	return n
}
