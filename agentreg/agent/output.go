// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// maxLine is where a line without end is cut.
const maxLine = 8 << 10

// maxLast bounds the last line that is reported as the reason of a failure.
const maxLast = 300

// lineWriter passes an engine's output on line by line, each with a prefix, so
// that the outputs of several engines can share a terminal.
type lineWriter struct {
	to     io.Writer
	prefix string

	mu     sync.Mutex
	buf    []byte
	recent string // the last line that was not blank
}

// Write never fails: an output that nobody takes must not end the engine.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	for {
		i := bytes.IndexByte(w.buf, '\n')
		if i < 0 && len(w.buf) >= maxLine {
			i = maxLine
		}
		if i < 0 {
			return len(p), nil
		}
		w.emit(w.buf[:min(i, maxLine)])
		rest := w.buf[min(i, maxLine):]
		w.buf = bytes.TrimPrefix(rest, []byte("\n"))
	}
}

func (w *lineWriter) emit(line []byte) {
	line = bytes.TrimRight(line, "\r")
	if s := strings.TrimSpace(string(line)); s != "" {
		w.recent = s[:min(len(s), maxLast)]
	}
	out := make([]byte, 0, len(w.prefix)+len(line)+1)
	out = append(append(append(out, w.prefix...), line...), '\n')
	_, _ = w.to.Write(out)
}

// flush passes on what came without a line's end.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buf) > 0 {
		w.emit(w.buf)
		w.buf = nil
	}
}

// last gives the last line that was not blank.
func (w *lineWriter) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.recent
}
