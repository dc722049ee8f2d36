// SPDX-License-Identifier: Apache-2.0

package extproc

import "bytes"

// lastEvent detects the last event of a relayed event stream. Many clients hang up when
// they have received it, before the engine has ended its answer.
type lastEvent struct {
	line   []byte // the beginning of the current line
	last   bool   // the current event is the last one
	passed bool   // the last event is complete
}

// lastLines are the beginnings of a line in the last event of each API: chat and
// completions, messages, responses.
var lastLines = [][]byte{
	[]byte("data: [DONE]"), []byte("data:[DONE]"),
	[]byte("event: message_stop"), []byte(`data: {"type":"message_stop"`),
	[]byte("event: response.completed"), []byte("event: response.incomplete"), []byte("event: response.failed"),
}

// lineStart is how much of a line is kept, enough for each of lastLines.
const lineStart = 32

// add takes the next bytes of the stream.
func (e *lastEvent) add(data []byte) {
	for len(data) > 0 {
		text, rest, whole := bytes.Cut(data, []byte("\n"))
		e.line = append(e.line, text[:min(len(text), lineStart-len(e.line))]...)
		if !whole {
			return
		}
		e.endLine()
		data = rest
	}
}

// endLine handles the end of a line. A blank line ends an event.
func (e *lastEvent) endLine() {
	line := bytes.TrimSuffix(e.line, []byte("\r"))
	e.line = e.line[:0]
	if len(line) == 0 {
		e.passed = e.passed || e.last
		return
	}
	for _, start := range lastLines {
		if bytes.HasPrefix(line, start) {
			e.last = true
			return
		}
	}
}
