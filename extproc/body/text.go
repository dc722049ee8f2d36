// SPDX-License-Identifier: Apache-2.0

package body

// textUse is which part of a top-level member is text.
type textUse uint8

const (
	textNone    textUse = iota
	textStrings         // its strings
	textWhole           // every byte: engines get it as JSON
)

// isNotText reports whether the strings in a member of this name, at any depth, are media
// or words of the protocol.
func isNotText(name []byte) bool {
	switch string(name) {
	case "image_url", "input_audio", "audio", "video_url", "source", "file", "file_data",
		"role", "type", "id", "tool_call_id", "tool_use_id", "cache_control":
		return true
	}
	return false
}

// textMeter measures the text of a body while it is scanned.
type textMeter struct {
	bytes int64 // of text
	ids   int64 // tokens in a prompt of token ids

	strings bool // inside a member whose strings are text
	from    int  // where a member begins of which every byte counts; 0: not inside one
	muted   int  // the depth of the object with a member that is not text; 0: none
}

// tokens estimates the number of tokens: one for each 3.2 bytes of text.
func (m *textMeter) tokens() int64 { return (m.bytes*10+31)/32 + m.ids }

// looksForNames reports whether the names of deeper members matter.
func (m *textMeter) looksForNames() bool { return m.strings && m.muted == 0 }

// isText reports whether strings are text here.
func (m *textMeter) isText() bool { return m.strings && m.muted == 0 }

// colon handles the beginning of a member's value.
func (m *textMeter) colon(s *scanner) {
	if s.member == nil || len(s.objects) > 1 {
		return
	}
	switch s.member.text {
	case textStrings:
		m.strings = true
	case textWhole:
		m.from = s.offset() + 1
	case textNone:
	}
}

// named handles the name of a member below the top level.
func (m *textMeter) named(s *scanner) {
	if !m.looksForNames() {
		return
	}
	if name, _ := s.unquoted(); isNotText(name) {
		m.muted = len(s.objects)
	}
}

// endString measures a string that is a value.
func (m *textMeter) endString(s *scanner) {
	if m.isText() {
		m.bytes += int64(s.length)
	}
}

// number counts a number where text is expected: it is a token id.
func (m *textMeter) number() {
	if m.isText() {
		m.ids++
	}
}

// endMember handles the end of a member.
func (m *textMeter) endMember(s *scanner) {
	if m.muted == len(s.objects) {
		m.muted = 0
	}
	if len(s.objects) > 1 {
		return
	}
	if m.from > 0 {
		m.bytes += int64(s.offset() - m.from)
	}
	m.strings, m.from = false, 0
}
