// SPDX-License-Identifier: Apache-2.0

package extproc

import "bytes"

// lastEvent looks for the event that ends a relayed stream of events. Many clients hang up
// when they have it, before the engine has ended its answer.
type lastEvent struct {
	line   []byte // the beginning of the line that is not complete
	last   bool   // the present event is the last one
	passed bool   // the last event is complete
}

// lastLines are how the last event of each API begins: chat and completions, messages,
// responses.
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

// endLine takes the line that is complete. A blank one ends its event.
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
