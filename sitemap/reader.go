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
// wrong type or unknown field; the reader adds a problem, skips the value and goes on, so
// that a push reports everything. Only a syntax error ends it early.
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

// stopped reports whether nothing more is read.
func (r *reader) stopped() bool {
	return r.broken || r.full()
}

// where returns the path of the value that is being read.
func (r *reader) where() string {
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

func (r *reader) note(format string, args ...any) {
	r.add(r.where(), fmt.Sprintf(format, args...))
}

// fail ends the reading after a syntax error.
func (r *reader) fail(err error) {
	if r.broken {
		return
	}
	r.broken = true
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntax):
		r.note("is not valid JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
	case errors.Is(err, io.EOF):
		r.note("is empty")
	default:
		r.note("is not valid JSON: %v", err)
	}
}

// at reports whether a value of this kind comes next. Any other is a problem and skipped.
func (r *reader) at(want jsontext.Kind, what string) bool {
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
	r.note("must be %s, not %s", what, kindText(got))
	return false
}

// open enters an object or an array.
func (r *reader) open(kind jsontext.Kind, what string) bool {
	return r.at(kind, what) && r.step()
}

func (r *reader) step() bool {
	if _, err := r.dec.ReadToken(); err != nil {
		r.fail(err)
		return false
	}
	return true
}

// more reports whether another element comes before the end. It consumes the end.
func (r *reader) more(end jsontext.Kind) bool {
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

// unquoted reads a string or a member name into the reader's buffer, which is
// valid until the next call.
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
	if !r.at(jsontext.KindString, "a string") {
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
	return r.at(jsontext.KindTrue, "true or false") && r.step()
}

// whole reads a number without fraction and exponent that is not negative.
func (r *reader) whole() (int64, bool) {
	if !r.at(jsontext.KindNumber, "a whole number") {
		return 0, false
	}
	raw, err := r.dec.ReadValue()
	if err != nil {
		r.fail(err)
		return 0, false
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < 0 {
		r.note("must be a whole number from 0 to 9223372036854775807, without fraction or exponent")
		return 0, false
	}
	return n, true
}

// end adds a problem if anything follows the document.
func (r *reader) end() {
	if r.stopped() {
		return
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		r.broken = true
		r.note("is followed by more data")
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
