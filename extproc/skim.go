// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/bits"

	"google.golang.org/grpc/mem"
)

// keptRun is how much a skimmer keeps of a run of plain characters. It is more than
// any name or value that the decision reads has.
const keptRun = 256

// skimmer reads a JSON text and leaves out most of its long strings, so that the
// decoder has little to do with a long prompt: of a run of plain ASCII characters
// inside a string only the beginning is passed on. Everything that could make the
// text invalid passes: structure, escapes, control characters, bytes of other
// characters, and at least one plain character wherever there was one. So the
// decoder takes what is left if and only if it takes the whole.
type skimmer struct {
	chunks  []mem.Buffer
	rest    []byte // of the present chunk
	string  bool   // inside a string
	escaped bool   // behind a backslash
	run     int    // plain characters in a row
	taken   int    // bytes of the text
	passed  int    // bytes passed on
}

// skimTrial is how much of a text is skimmed before it is seen whether that pays:
// of text full of escapes nothing can be left out.
const skimTrial = 8 << 10

// Read is part of io.Reader.
func (s *skimmer) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if len(s.rest) == 0 {
			if len(s.chunks) == 0 {
				break
			}
			s.rest, s.chunks = s.chunks[0].ReadOnlyData(), s.chunks[1:]
			continue
		}
		before := len(s.rest)
		var passed int
		switch {
		case s.taken > skimTrial && s.passed > s.taken/2:
			passed = copy(p[n:], s.rest)
			s.rest = s.rest[passed:]
		case s.string:
			passed = s.inside(p[n:])
		default:
			passed = s.outside(p[n:])
		}
		s.taken += before - len(s.rest)
		s.passed += passed
		n += passed
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// outside passes everything on, up to the next string.
func (s *skimmer) outside(p []byte) int {
	end := bytes.IndexByte(s.rest, '"') + 1
	if end == 0 {
		end = len(s.rest)
	}
	n := copy(p, s.rest[:end])
	s.string = s.rest[n-1] == '"'
	s.run, s.rest = 0, s.rest[n:]
	return n
}

// inside passes on what a string may not be without.
func (s *skimmer) inside(p []byte) int {
	plain := 0
	if !s.escaped {
		plain = plainPrefix(s.rest)
	}
	if plain > 0 {
		keep := min(plain, max(0, keptRun-s.run))
		n := copy(p, s.rest[:keep])
		if n == keep {
			n, keep = keep, plain // the rest of the run is left out
		} else {
			keep = n
		}
		s.run += keep
		s.rest = s.rest[keep:]
		return n
	}
	c := s.rest[0]
	p[0], s.rest = c, s.rest[1:]
	s.run = 0
	s.string = c != '"' || s.escaped
	s.escaped = c == '\\' && !s.escaped
	return 1
}

// plainPrefix is the length of the ASCII characters that b begins with and that
// mean nothing in a string: no quote, no backslash, no control character. It looks
// at eight of them at once.
func plainPrefix(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(b[n:])
		quote, backslash := x^(ones*'"'), x^(ones*'\\')
		special := (x - ones*' ') &^ x
		special |= (quote - ones) &^ quote
		special |= (backslash - ones) &^ backslash
		special |= x
		// A borrow may mark bytes above the first that is special, never below.
		if special &= tops; special != 0 {
			return n + bits.TrailingZeros64(special)/8
		}
	}
	for n < len(b) && b[n] >= ' ' && b[n] < 0x80 && b[n] != '"' && b[n] != '\\' {
		n++
	}
	return n
}
