// SPDX-License-Identifier: Apache-2.0

package site

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/holdstate"
)

func TestALevelIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	some := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) holdstate.Standing {
		return holdstate.Standing{Identity: rapid.Uint64Min(1).Draw(t, "identity"), Place: rapid.Uint64Min(1).Draw(t, "place")}
	}), 0, 300)
	rapid.Check(t, func(t *rapid.T) {
		waiting, left := map[uint64]uint64{}, map[uint64]uint64{}
		l := holdstate.Level{Released: rapid.IntRange(0, 1<<20).Draw(t, "released")}
		if rapid.Bool().Draw(t, "wanted") {
			l.WantedUntil = time.UnixMilli(rapid.Int64Range(1, 1<<42).Draw(t, "until"))
		}
		for _, s := range some.Draw(t, "waiting") {
			if _, twice := waiting[s.Identity]; !twice {
				waiting[s.Identity] = s.Place
				l.Waiting = append(l.Waiting, s)
			}
		}
		gone := some.Draw(t, "left")
		for _, s := range gone {
			left[s.Identity] = s.Place
		}
		text := encode(l, gone)
		if len(l.Waiting)+len(gone) == 0 && l.WantedUntil.IsZero() {
			require.Empty(t, text)
			return
		}
		read, ok := decode(text)
		require.True(t, ok)
		require.Equal(t, read.wanted(), !l.Empty())
		require.Equal(t, l.Released, read.released)
		require.True(t, l.WantedUntil.Equal(read.wantedUntil))
		require.Equal(t, len(l.Waiting), read.waiting.len())
		for identity, place := range waiting {
			require.Equal(t, place, read.waiting.place(identity))
		}
		require.Zero(t, read.waiting.place(0))
		require.Equal(t, len(gone), read.left.len())
		for i := range read.left.len() {
			require.Contains(t, gone, read.left.at(i))
		}
	})
}

func TestAnythingElseIsNoLevel(t *testing.T) {
	t.Parallel()
	text := encode(holdstate.Level{Waiting: []holdstate.Standing{{Identity: 1, Place: 2}}}, []holdstate.Standing{{Identity: 3, Place: 4}})
	for i := range len(text) {
		_, ok := decode(text[:i])
		require.False(t, ok, "%d bytes", i)
	}
	for _, bad := range []string{text + "x", "\x02" + text[1:], "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x01\x00\x00\xff\xff\xff\xff\x0f"} {
		_, ok := decode(bad)
		require.False(t, ok, "%q", bad)
	}
	rapid.Check(t, func(t *rapid.T) {
		l, ok := decode("\x01" + string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")))
		if !ok {
			require.Zero(t, l)
		}
	})
}

func TestAUseIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, u := range []Use{{}, {InFlight: 3}, {Idle: 90 * time.Second}, {InFlight: 1 << 20, Idle: time.Hour}} {
		read, ok := decodeUse(u.encode())
		require.True(t, ok)
		require.Equal(t, u, read)
	}
	for _, bad := range []string{"", "\x01", "\x01\x01", "\x02\x01\x01", "\x01\x01\x01\x01"} {
		_, ok := decodeUse(bad)
		require.False(t, ok, "%q", bad)
	}
}
