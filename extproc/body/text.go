// SPDX-License-Identifier: Apache-2.0

package body

// textUse says which part of a top-level member is text.
type textUse uint8

const (
	textNone    textUse = iota
	textStrings         // its strings
	textWhole           // every byte: the model gets it as JSON
)

// isNotText reports whether the strings in a member of this name, at any depth, are media
// or identifiers of the protocol instead of text.
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

	strings bool // in a member whose strings are text
	from    int  // where the current member of textWhole begins; 0: in no such member
	muted   int  // the depth of the object that has the current member for isNotText; 0: none
}

// tokens estimates the number of tokens: one for each 3.2 bytes of text.
func (m *textMeter) tokens() int64 { return (m.bytes*10+31)/32 + m.ids }

// isText reports whether strings are text at the scanner's position.
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

// endName handles the name of a member below the top level.
func (m *textMeter) endName(s *scanner) {
	if !m.isText() {
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
