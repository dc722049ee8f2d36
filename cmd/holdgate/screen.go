// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"github.com/mattn/go-isatty"

	"github.com/holdgate/holdgate/internal/admin/page"
)

// color is the color of a word. It is one character, so that the columns of a table stay
// straight if all cells of a column have one.
type color rune

// The colors. On anything but a terminal they are left out.
const (
	plainColor color = '\uE000' + iota
	goodColor
	waitColor
	badColor
	softColor
	noColor // ends the others
)

var codes = map[color]string{plainColor: "\x1b[39m", goodColor: "\x1b[32m", waitColor: "\x1b[33m", badColor: "\x1b[31m", softColor: "\x1b[90m", noColor: "\x1b[0m"}

// paint returns a word in a color.
func paint(c color, word string) string { return string(c) + word + string(noColor) }

// stateColors are the colors of states and events; others have plainColor.
var stateColors = map[string]color{
	"warm": goodColor, "serving": goodColor, "awake": goodColor, "released": goodColor, "ready": goodColor,
	"waking": waitColor, "held": waitColor, "not_ready": badColor, "refused": badColor, "failed": badColor, "leaving": badColor, "lost": badColor,
	"asleep": softColor, "elsewhere": softColor, "left": softColor,
}

func paintState(state string) string { return paintAs(state, state) }

// paintAs returns a text in the color of a state.
func paintAs(state, text string) string {
	c, ok := stateColors[state]
	if !ok {
		c = plainColor
	}
	return paint(c, text)
}

// screen is where a command prints. Characters that are not printed, which a name may have, are
// shown by their numbers, so that no name can steer the terminal.
type screen struct {
	out    io.Writer
	colors bool
	bars   bool
}

// newScreen returns the screen of a command's output. Only a terminal gets bars and colors, and
// colors only without NO_COLOR.
func newScreen(out io.Writer) *screen {
	f, ok := out.(*os.File)
	terminal := ok && isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb"
	return &screen{out: out, bars: terminal, colors: terminal && os.Getenv("NO_COLOR") == ""}
}

// Write implements io.Writer. Each call must end with a whole character.
func (s *screen) Write(text []byte) (int, error) {
	var b bytes.Buffer
	for _, r := range string(text) {
		if code, ok := codes[color(r)]; ok {
			if s.colors {
				b.WriteString(code)
			}
			continue
		}
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(page.Text(string(r)))
		}
	}
	if _, err := s.out.Write(b.Bytes()); err != nil {
		return 0, fmt.Errorf("printing: %w", err)
	}
	return len(text), nil
}

// clear empties the screen of a terminal.
func (s *screen) clear() {
	if s.bars {
		fmt.Fprint(s.out, "\x1b[H\x1b[2J")
	}
}

// bar returns a bar that is filled in part, with a space after it; on anything but a terminal it
// is empty.
func bar(out io.Writer, part, whole float64) string {
	s, ok := out.(*screen)
	if !ok || !s.bars || whole <= 0 {
		return ""
	}
	const width = 20
	n := max(0, min(width, int(part/whole*width+.5)))
	return strings.Repeat("█", n) + strings.Repeat("░", width-n) + " "
}

// cell returns a text for a cell of a table, as wide as it is printed.
func cell(text string) string { return page.Text(text) }
