// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"strconv"
)

// Usage is how many tokens an engine says that a request and its answer have.
type Usage struct {
	Input, Output int64
	Known         bool // the engine has said it
}

// UsageReader reads the usage from an engine's answer that passes in pieces: from the member usage
// of its JSON, or of the JSON of its events, where it may also be in a member response or message.
// If it comes several times, each number counts as it was last. It keeps only that member, of at
// most usageBytes.
type UsageReader struct {
	events bool // the answer is a stream of events
	lines  eventLines
	json   usageScanner
}

// usageBytes is the size of the largest usage that is read.
const usageBytes = 2 << 10

// maxTokens is the largest number that is believed.
const maxTokens = 1 << 32

// NewUsageReader returns a reader of an answer that is one JSON text, or a stream of events.
func NewUsageReader(events bool) *UsageReader { return &UsageReader{events: events} }

// Add reads the next piece of the answer.
func (r *UsageReader) Add(piece []byte) {
	if r.events {
		r.lines.add(piece, &r.json)
		return
	}
	r.json.add(piece)
}

// Usage returns what was read so far.
func (r *UsageReader) Usage() Usage { return r.json.found.usage() }

// eventLines finds the data in the lines of a stream of events.
type eventLines struct {
	part    linePart
	matched int  // bytes of dataField, in part begin
	cr      bool // the last byte was a CR
}

// linePart is where the next byte of a line is.
type linePart uint8

const (
	begin linePart = iota // in its first bytes, which may be dataField
	inData
	inOther
)

const dataField = "data:"

// add reads the next piece of the stream. A blank line ends an event.
func (l *eventLines) add(p []byte, to *usageScanner) {
	for len(p) > 0 {
		if l.part == begin {
			l.first(p[0], to)
			p = p[1:]
			continue
		}
		end := bytes.IndexAny(p, "\r\n")
		text := p
		if end >= 0 {
			text = p[:end]
		}
		if l.part == inData {
			to.add(text)
		}
		if end < 0 {
			return
		}
		l.part, l.matched, l.cr = begin, 0, p[end] == '\r'
		p = p[end+1:]
	}
}

// first reads one of the first bytes of a line.
func (l *eventLines) first(b byte, to *usageScanner) {
	afterCR := l.cr
	l.cr = b == '\r'
	switch {
	case b == '\n' && afterCR: // the same end of a line
	case b == '\r' || b == '\n':
		if l.matched == 0 {
			to.reset()
		}
		l.matched = 0
	case b == dataField[l.matched]:
		if l.matched++; l.matched == len(dataField) {
			l.part = inData
		}
	default:
		l.part = inOther
	}
}

// usageScanner finds the usage in a JSON text. It does not check the text.
type usageScanner struct {
	depth int // of open objects and arrays
	// at is where the members of the objects that are followed are: the outermost, and one in it.
	at [2]followed

	inString, escaped bool
	isKey             bool // the string is a key of an object that is followed
	key               []byte

	value []byte // of a usage, as far as it came; nil: none is read
	found usageFields
}

// followed is the state of an object whose keys are read.
type followed struct {
	open, wantsKey bool
	key            keyKind // of the current member
}

// keyKind is what a key means for the usage.
type keyKind uint8

const (
	otherKey keyKind = iota
	usageKey
	outerKey // the usage may be in its value
)

// maxKey is longer than each key that has a meaning.
const maxKey = 16

func kindOf(key []byte) keyKind {
	switch string(key) {
	case "usage":
		return usageKey
	case "response", "message":
		return outerKey
	}
	return otherKey
}

// reset begins another text.
func (s *usageScanner) reset() { *s = usageScanner{key: s.key[:0], found: s.found} }

// add reads the next piece of the text.
func (s *usageScanner) add(p []byte) {
	for i := 0; i < len(p); i++ {
		if s.inString && !s.escaped {
			n := stringPart(p[i:])
			s.text(p[i : i+n])
			if i += n; i == len(p) {
				return
			}
		}
		if s.value != nil {
			s.collect(p[i : i+1])
		}
		s.next(p[i])
	}
}

// stringPart returns how many bytes of a string come before the next quote or backslash.
func stringPart(p []byte) int {
	for i, b := range p {
		if b == '"' || b == '\\' {
			return i
		}
	}
	return len(p)
}

// text reads a part of a string.
func (s *usageScanner) text(p []byte) {
	if s.value != nil {
		s.collect(p)
	}
	if s.isKey {
		s.key = append(s.key, p[:min(len(p), maxKey-len(s.key))]...)
	}
}

// collect adds to the value of a usage. One that is too large is not read.
func (s *usageScanner) collect(p []byte) {
	s.value = append(s.value, p[:min(len(p), usageBytes+1-len(s.value))]...)
}

// next reads one byte that is not inside of a string, or one that ends it or is part of an escape.
func (s *usageScanner) next(b byte) {
	switch {
	case s.escaped:
		s.escaped = false
	case s.inString && b == '\\':
		s.escaped = true
		s.isKey = false // no key that has a meaning has an escape
	case s.inString:
		s.endString()
	case b == '"':
		s.beginString()
	case b == '{' || b == '[':
		s.open(b == '{')
	case b == '}' || b == ']':
		s.close()
	case b == ',':
		if f := s.current(); f != nil {
			f.wantsKey, f.key = true, otherKey
		}
	}
}

// current returns the object that the next member belongs to, nil if it is not followed.
func (s *usageScanner) current() *followed {
	if s.depth < 1 || s.depth > len(s.at) || !s.at[s.depth-1].open {
		return nil
	}
	return &s.at[s.depth-1]
}

func (s *usageScanner) beginString() {
	f := s.current()
	s.inString, s.isKey = true, f != nil && f.wantsKey
	if f != nil {
		f.wantsKey = false
	}
	s.key = s.key[:0]
}

func (s *usageScanner) endString() {
	s.inString = false
	if f := s.current(); s.isKey && f != nil {
		f.key = kindOf(s.key)
	}
	s.isKey = false
}

// open begins an object or an array.
func (s *usageScanner) open(object bool) {
	f := s.current()
	isUsage := object && f != nil && f.key == usageKey && s.value == nil
	follow := object && (s.depth == 0 || f != nil && f.key == outerKey)
	s.depth++
	if s.depth <= len(s.at) {
		s.at[s.depth-1] = followed{open: follow, wantsKey: follow}
	}
	if isUsage {
		s.value = append(make([]byte, 0, 256), '{')
	}
}

// close ends an object or an array. The value of a usage ends with the object of a followed one.
func (s *usageScanner) close() {
	s.depth = max(0, s.depth-1)
	f := s.current()
	if s.value == nil || f == nil || f.key != usageKey {
		return
	}
	if len(s.value) <= usageBytes {
		s.found.read(s.value)
	}
	s.value = nil
}

// usageFields are the numbers of a usage, by the names that the APIs give them.
type usageFields struct {
	prompt, completion     number // chat, completions and embeddings
	input, output          number // responses and messages
	cacheRead, cacheCreate number // messages; not part of input
	total                  number // of a rerank, the only one
}

// number is a number of tokens, if it is known.
type number struct {
	n     int64
	known bool
}

// read takes the numbers of a usage, a JSON object. A number that is null, negative, too large or
// no whole number counts as missing.
func (f *usageFields) read(object []byte) {
	var members map[string]jsontext.Value
	lax := json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if json.Unmarshal(object, &members, lax) != nil {
		return
	}
	for name, to := range map[string]*number{
		"prompt_tokens": &f.prompt, "completion_tokens": &f.completion, "input_tokens": &f.input, "output_tokens": &f.output,
		"cache_read_input_tokens": &f.cacheRead, "cache_creation_input_tokens": &f.cacheCreate, "total_tokens": &f.total,
	} {
		if n, err := strconv.ParseInt(string(members[name]), 10, 64); err == nil && n >= 0 && n <= maxTokens {
			*to = number{n, true}
		}
	}
}

// usage returns the numbers by the API that has them.
func (f *usageFields) usage() Usage {
	switch {
	case f.prompt.known || f.completion.known:
		return Usage{Input: f.prompt.n, Output: f.completion.n, Known: true}
	case f.input.known || f.output.known:
		return Usage{Input: f.input.n + f.cacheRead.n + f.cacheCreate.n, Output: f.output.n, Known: true}
	case f.total.known:
		return Usage{Input: f.total.n, Known: true}
	}
	return Usage{}
}
