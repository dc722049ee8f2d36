// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"bytes"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// reader reads a document token by token. Decoding into structs would stop at the first
// wrong type or unknown field; the reader adds a problem, skips the value and continues, so
// that all problems are reported. Only a syntax error ends the reading early.
type reader struct {
	collector

	dec    *jsontext.Decoder
	path   []step
	broken bool

	// names interns strings: a map of 100,000 placements repeats a few hundred models and
	// sites.
	names map[string]string
	buf   []byte
}

// step is one part of a path: a member, or an index when name is empty.
type step struct {
	name  string
	index int
}

func newReader(data []byte) *reader {
	return &reader{
		// The table of fields finds repeated names, all of them and with their path; the
		// decoder would end at the first.
		dec:   jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true)),
		names: map[string]string{},
	}
}

// stopped reports whether the reading has ended early.
func (r *reader) stopped() bool {
	return r.broken || r.full()
}

// currentPath returns the path of the value that is being read.
func (r *reader) currentPath() string {
	path := ""
	for _, s := range r.path {
		if s.name == "" {
			path += "[" + strconv.Itoa(s.index) + "]"
		} else {
			path = joinPath(path, s.name)
		}
	}
	return path
}

func (r *reader) addHere(format string, args ...any) {
	r.add(r.currentPath(), fmt.Sprintf(format, args...))
}

// fail ends the reading with a syntax error.
func (r *reader) fail(err error) {
	if r.broken {
		return
	}
	r.broken = true
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntax):
		r.addHere("is not valid JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
	case errors.Is(err, io.EOF):
		r.addHere("is empty")
	default:
		r.addHere("is not valid JSON: %v", err)
	}
}

// expect reports whether the next value is of this kind. If it is not, expect adds a problem
// and skips the value.
func (r *reader) expect(want jsontext.Kind, what string) bool {
	if r.stopped() {
		return false
	}
	got := r.dec.PeekKind()
	if got == want {
		return true
	}
	if err := r.dec.SkipValue(); err != nil {
		r.fail(err)
		return false
	}
	r.addHere("must be %s, not %s", what, kindText(got))
	return false
}

// open reads the beginning of an object or an array, and reports whether there was one.
func (r *reader) open(kind jsontext.Kind, what string) bool {
	return r.expect(kind, what) && r.step()
}

func (r *reader) step() bool {
	if _, err := r.dec.ReadToken(); err != nil {
		r.fail(err)
		return false
	}
	return true
}

// hasMore reports whether another element follows. If not, it consumes the end of the array
// or object.
func (r *reader) hasMore(end jsontext.Kind) bool {
	if r.stopped() {
		return false
	}
	if r.dec.PeekKind() == end {
		r.step()
		return false
	}
	return true
}

func (r *reader) skip() {
	if err := r.dec.SkipValue(); err != nil {
		r.fail(err)
	}
}

// unquoted reads a string or a member name. The bytes are valid until the next call.
func (r *reader) unquoted() ([]byte, bool) {
	raw, err := r.dec.ReadValue()
	if err == nil {
		r.buf, err = jsontext.AppendUnquote(r.buf[:0], raw)
	}
	if err != nil {
		r.fail(err)
		return nil, false
	}
	return r.buf, true
}

// text reads a string.
func (r *reader) text() (string, bool) {
	if !r.expect(jsontext.KindString, "a string") {
		return "", false
	}
	b, ok := r.unquoted()
	if !ok {
		return "", false
	}
	if s, known := r.names[string(b)]; known {
		return s, true
	}
	s := string(b)
	r.names[s] = s
	return s, true
}

// boolean reads true or false.
func (r *reader) boolean() bool {
	if !r.stopped() && r.dec.PeekKind() == jsontext.KindFalse {
		r.step()
		return false
	}
	return r.expect(jsontext.KindTrue, "true or false") && r.step()
}

// wholeNumber reads a number that is not negative and has no fraction and no exponent.
func (r *reader) wholeNumber() (int64, bool) {
	if !r.expect(jsontext.KindNumber, "a whole number") {
		return 0, false
	}
	raw, err := r.dec.ReadValue()
	if err != nil {
		r.fail(err)
		return 0, false
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < 0 {
		r.addHere("must be a whole number from 0 to 9223372036854775807, without fraction or exponent")
		return 0, false
	}
	return n, true
}

// end adds a problem if there is data after the document.
func (r *reader) end() {
	if r.stopped() {
		return
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		r.broken = true
		r.addHere("is followed by more data")
	}
}

func kindText(k jsontext.Kind) string {
	switch k {
	case jsontext.KindNull:
		return "null"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "a boolean"
	case jsontext.KindString:
		return "a string"
	case jsontext.KindNumber:
		return "a number"
	case jsontext.KindBeginObject:
		return "an object"
	case jsontext.KindBeginArray:
		return "an array"
	default:
		return "that"
	}
}
