// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"encoding/json/jsontext"
	"io"
	"math"
	"slices"
)

// Footprint estimates what the request takes of an engine, in tokens: one for each
// 3.2 bytes of text, and the output that it declares. Media are left out. It reads
// the whole body, so only who needs it asks.
func (r *Request) Footprint() int64 {
	m := r.body.measure(r.coding)
	return (m.text*10+31)/32 + m.ids + max(0, r.MaxTokens, r.MaxCompletionTokens)
}

// measure counts the text of a body that was read before.
func (b *body) measure(c coding) textMeter {
	var m textMeter
	// Its decoded size was within the limit then.
	r, done, err := decode(c, b.reader(), math.MaxInt64-1)
	if err != nil {
		return textMeter{text: b.size}
	}
	defer done()
	if _, err := io.Copy(&m, r); err != nil {
		return textMeter{text: b.size}
	}
	return m
}

// textMembers are the members of the top-level object whose strings are text. Of
// those that are true every byte counts: an engine gets them as JSON.
var textMembers = map[string]bool{
	"messages": false, "system": false, "prompt": false, "input": false, "instructions": false,
	"query": false, "documents": false, "tools": true, "functions": true,
}

// notText are the members at any depth whose strings are media or words of the
// protocol.
var notText = map[string]bool{
	"image_url": true, "input_audio": true, "audio": true, "video_url": true, "source": true, "file": true, "file_data": true,
	"role": true, "type": true, "id": true, "tool_call_id": true, "tool_use_id": true, "cache_control": true,
}

// longestName is more than any name that is looked for takes with all its letters
// escaped.
const longestName = 96

// textMeter counts the text of a JSON text that is known to be valid.
type textMeter struct {
	text int64 // bytes
	ids  int64 // tokens that the client has made itself

	depth   int
	string  bool // inside a string
	escaped bool // behind a backslash
	ended   bool // behind a string that may be a name
	number  bool // inside a number
	length  int64
	name    []byte // the beginning of the last string as it stands
	counts  bool   // inside one of textMembers
	whole   bool   // of which every byte counts
	muted   int    // the depth of the object with one of notText; 0: none
}

// Write is part of io.Writer.
func (m *textMeter) Write(p []byte) (int, error) {
	m.add(p)
	return len(p), nil
}

func (m *textMeter) add(p []byte) {
	for len(p) > 0 {
		n, inside := 1, m.counts && m.whole
		if m.string {
			n = m.inside(p)
		} else {
			m.outside(p[0])
		}
		if inside && m.counts {
			m.text += int64(n)
		}
		p = p[n:]
	}
}

// inside takes a run of plain characters of a string, or one of its other bytes. An
// escape counts as one byte, or as three where it stands for any character.
func (m *textMeter) inside(p []byte) int {
	if m.escaped {
		if m.escaped = false; p[0] == 'u' {
			m.length -= 2 // of the backslash and four digits
		}
		m.keep(p[:1])
		return 1
	}
	if n := plainPrefix(p); n > 0 {
		m.length += int64(n)
		m.keep(p[:n])
		return n
	}
	switch p[0] {
	case '"':
		m.string, m.ended = false, true
		return 1
	case '\\':
		m.escaped = true
	}
	m.length++
	m.keep(p[:1])
	return 1
}

// keep adds to the last string what it has room for.
func (m *textMeter) keep(p []byte) {
	m.name = append(m.name, p[:min(len(p), longestName-len(m.name))]...)
}

// outside takes a byte between strings.
func (m *textMeter) outside(c byte) {
	if m.ended && c > ' ' {
		if m.ended = false; c == ':' {
			m.member()
		} else if m.isText() {
			m.text += m.length
		}
	}
	m.countNumber(c)
	switch c {
	case '"':
		m.string, m.length, m.name = true, 0, m.name[:0]
	case '{', '[':
		m.depth++
	case '}', ']':
		m.unmute()
		m.depth--
		m.counts = m.counts && m.depth > 0
	case ',':
		m.unmute()
		m.counts = m.counts && m.depth > 1
	}
}

// countNumber counts numbers where text is expected: each stands for a token.
func (m *textMeter) countNumber(c byte) {
	switch {
	case c >= '0' && c <= '9', c == '-':
		if !m.number && m.isText() {
			m.ids++
		}
		m.number = true
	case c != '.' && c != 'e' && c != 'E' && c != '+':
		m.number = false
	}
}

// member begins a member with the name that was read last.
func (m *textMeter) member() {
	if m.depth == 1 {
		m.whole, m.counts = textMembers[string(m.unescaped())]
		return
	}
	if m.counts && m.muted == 0 && notText[string(m.unescaped())] {
		m.muted = m.depth
	}
}

// unescaped is the last string as an engine reads it.
func (m *textMeter) unescaped() []byte {
	if bytes.IndexByte(m.name, '\\') < 0 {
		return m.name
	}
	quoted := slices.Concat([]byte{'"'}, m.name, []byte{'"'})
	name, _ := jsontext.AppendUnquote(nil, quoted) // one that was cut is no name that is looked for
	return name
}

// unmute is for the end of a member.
func (m *textMeter) unmute() {
	if m.depth == m.muted {
		m.muted = 0
	}
}

// isText says whether the strings here are text.
func (m *textMeter) isText() bool { return m.counts && !m.whole && m.muted == 0 }
