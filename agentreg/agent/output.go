// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/holdgate/holdgate/internal/mask"
)

// maxLine is how many bytes a line may have before it is cut.
const maxLine = 8 << 10

// How much is kept of the end of an engine's output, which is logged and shown to operators.
const (
	tailLines   = 3
	maxTailLine = 140 // bytes
)

// lineWriter writes an engine's output line by line, each with a prefix, so that several
// engines can share a terminal.
type lineWriter struct {
	to     io.Writer
	prefix string
	tail   *outputTail

	mu  sync.Mutex
	buf []byte
}

// Write never fails: output that cannot be written must not end the engine.
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
	w.tail.add(string(line))
	out := make([]byte, 0, len(w.prefix)+len(line)+1)
	out = append(append(append(out, w.prefix...), line...), '\n')
	_, _ = w.to.Write(out)
}

// flush writes a last line that has no line end.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buf) > 0 {
		w.emit(w.buf)
		w.buf = nil
	}
}

// outputTail keeps the last lines of an engine's standard output and standard error.
type outputTail struct {
	secrets *strings.Replacer // hides secrets of the engine's command; nil: hides nothing

	mu    sync.Mutex
	lines []string
}

// colors matches escape sequences of a terminal.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func (l *outputTail) add(line string) {
	line = colors.ReplaceAllString(strings.ToValidUTF8(line, "?"), "")
	if l.secrets != nil {
		line = l.secrets.Replace(line)
	}
	line = mask.Secrets(line)
	line = strings.TrimSpace(strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, line))
	if line == "" {
		return
	}
	if len(line) > maxTailLine {
		end := maxTailLine
		for !utf8.RuneStart(line[end]) {
			end--
		}
		line = line[:end] + "…"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	l.lines = l.lines[max(0, len(l.lines)-tailLines):]
}

// String returns the last lines as one line.
func (l *outputTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, " | ")
}

// secretName matches the names of flags and variables that have a secret.
var secretName = regexp.MustCompile("(?i)key|token|secret|passw")

// minSecret is the shortest value, in bytes, that is hidden.
const minSecret = 8

// newSecretReplacer returns a Replacer that hides the values of a command's flags and
// variables whose names match secretName: engines often print their arguments.
func newSecretReplacer(command, env []string) *strings.Replacer {
	var pairs []string
	hide := func(name, value string) {
		if secretName.MatchString(name) && len(value) >= minSecret {
			pairs = append(pairs, value, "***")
		}
	}
	flag := ""
	for _, word := range command {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case !strings.HasPrefix(word, "-"):
			hide(flag, word)
			flag = ""
		case ok:
			hide(name, value)
		default:
			flag = word
		}
	}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		hide(name, value)
	}
	return strings.NewReplacer(pairs...)
}
