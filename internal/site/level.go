// SPDX-License-Identifier: Apache-2.0

package site

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
	"time"

	"github.com/holdgate/holdgate/holdstate"
)

// levelVersion is the first byte of a level. A router ignores the levels of other versions.
const levelVersion = 1

// standingSize is how many bytes a request takes in a level: its identity and its place.
const standingSize = 16

// level is the demand of a router for a model, as it is in the server.
type level struct {
	waiting  standings // the requests that wait
	left     standings // requests that were told to go elsewhere, or whose clients left, a moment ago
	released int
	// wantedUntil is by the clock of the router that wrote it, zero: it is not wanted without a
	// waiting request.
	wantedUntil time.Time
}

// wanted reports whether the model is wanted. The router that wrote the level ends it in time, so
// that clocks are not compared.
func (l *level) wanted() bool { return l.waiting.len() > 0 || !l.wantedUntil.IsZero() }

// encode returns the bytes of a level.
func encode(l holdstate.Level, left []holdstate.Standing) string {
	if l.Empty() && len(left) == 0 {
		return ""
	}
	b := make([]byte, 0, 1+4*binary.MaxVarintLen64+standingSize*(len(l.Waiting)+len(left)))
	b = append(b, levelVersion)
	until := uint64(0)
	if !l.WantedUntil.IsZero() {
		until = uint64(max(1, l.WantedUntil.UnixMilli()))
	}
	b = binary.AppendUvarint(b, until)
	b = binary.AppendUvarint(b, uint64(max(0, l.Released)))
	b = appendStandings(b, l.Waiting)
	return string(appendStandings(b, left))
}

// appendStandings appends requests in the order of their identities.
func appendStandings(b []byte, all []holdstate.Standing) []byte {
	slices.SortFunc(all, func(x, y holdstate.Standing) int { return cmp.Compare(x.Identity, y.Identity) })
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, s := range all {
		b = binary.LittleEndian.AppendUint64(b, s.Identity)
		b = binary.LittleEndian.AppendUint64(b, s.Place)
	}
	return b
}

// decode reads a level. ok is false for one of another version.
func decode(text string) (l level, ok bool) {
	if text == "" || text[0] != levelVersion {
		return level{}, false
	}
	r := reader{rest: text[1:]}
	if until := r.number(); until > 0 {
		l.wantedUntil = time.UnixMilli(int64(min(until, 1<<53)))
	}
	l.released = int(min(r.number(), 1<<31))
	l.waiting, l.left = r.standings(), r.standings()
	if r.bad || r.rest != "" {
		return level{}, false
	}
	return l, true
}

// reader reads the bytes of a value that another router has written.
type reader struct {
	rest string
	bad  bool // the bytes are not such a value
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint([]byte(r.rest[:min(len(r.rest), binary.MaxVarintLen64)]))
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) standings() standings {
	n := r.number()
	if n > uint64(len(r.rest)/standingSize) {
		r.bad = true
		return ""
	}
	s := standings(r.rest[:n*standingSize])
	r.rest = r.rest[len(s):]
	return s
}

// standings are requests in the order of their identities, as bytes.
type standings string

func (s standings) len() int { return len(s) / standingSize }

func (s standings) at(i int) holdstate.Standing {
	return holdstate.Standing{Identity: s.word(2 * i), Place: s.word(2*i + 1)}
}

// word returns a number of eight bytes.
func (s standings) word(i int) uint64 {
	var b [8]byte
	copy(b[:], s[8*i:])
	return binary.LittleEndian.Uint64(b[:])
}

// place returns the place of a request, 0 if it is not among them.
func (s standings) place(identity uint64) uint64 {
	n := s.len()
	i := sort.Search(n, func(i int) bool { return s.word(2*i) >= identity })
	if i < n && s.word(2*i) == identity {
		return s.word(2*i + 1)
	}
	return 0
}
