// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

// bigMap has n placements: one model of three at this site, the others at 20
// siblings.
func bigMap(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"generation": 1, "sites": [{"id": "here", "url": "https://here.example"}`)
	for i := range 20 {
		fmt.Fprintf(&b, `, {"id": "s%d", "url": "https://s%d.example"}`, i, i)
	}
	b.WriteString(`], "placements": [`)
	for i := range n {
		site := here
		if i%3 > 0 {
			site = fmt.Sprintf("s%d", i%20)
		}
		if i > 0 {
			b.WriteString(",\n")
		}
		fmt.Fprintf(&b, `{"model":"m-%d","kind":"chat","site":"%s","scale_from_zero":true}`, i, site)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

// Not parallel: testing.AllocsPerRun counts every goroutine's allocations.
func TestLookupsAllocateNothing(t *testing.T) { //nolint:paralleltest // see above
	store := NewStore(here, nil)
	_, err := store.Push(bigMap(1000), false)
	require.NoError(t, err)
	target := target.Target{Model: strings.Clone("m-999"), Kind: target.Chat}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		m := store.Current()
		p, ok := m.Here(target)
		if !ok || !p.ScaleFromZero {
			t.Error("not placed here")
		}
	}))
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := bigMap(n)
			require.Less(b, len(data), MaxBytes)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(data, here); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHere(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			store := NewStore(here, nil)
			_, err := store.Push(bigMap(n), false)
			require.NoError(b, err)
			target := target.Target{Model: "m-3", Kind: target.Chat}
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := store.Current().Here(target); !ok {
					b.Fatal("not placed here")
				}
			}
		})
	}
}

// wideMap has n placements at this many siblings; each model is at all of them
// as far as n goes, all of them warm.
func wideMap(tb testing.TB, n, sites int) *Map {
	tb.Helper()
	var listed, placed, hinted []string
	for i := range sites {
		listed = append(listed, fmt.Sprintf(`{"id": "site-%d", "url": "https://s%d.example", "scopes": ["eu", "s%d"]}`, i, i, i%50))
	}
	for i := range n {
		entry := fmt.Sprintf(`"model": "m-%d", "kind": "chat", "site": "site-%d"`, i/sites, i%sites)
		placed = append(placed, "{"+entry+"}")
		hinted = append(hinted, "{"+entry+`, "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}`)
	}
	m, err := Parse([]byte(`{"sites": [`+strings.Join(listed, ",")+`], "placements": [`+strings.Join(placed, ",")+
		`], "hints": [`+strings.Join(hinted, ",")+`]}`), here)
	require.NoError(tb, err)
	m.hints.receive(noon, noon, DefaultHintsFreshFor)
	return m
}

// Not parallel: testing.AllocsPerRun counts every goroutine's allocations.
func TestPickAllocatesNothing(t *testing.T) { //nolint:paralleltest // see above
	m := wideMap(t, 1000, 20)
	q := Query{Model: strings.Clone("m-7"), Kind: target.Chat, Key: strings.Clone("acme-prod"), Scopes: []string{"eu", "x"}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if c := m.Pick(q, noon); !c.Redirect {
			t.Error(c.Reason)
		}
	}))
}

func BenchmarkPick(b *testing.B) {
	for _, sites := range []int{2, 20, 200} {
		for _, n := range []int{10, 1000, 100_000} {
			b.Run(fmt.Sprintf("sites=%d/placements=%d", sites, n), func(b *testing.B) {
				m := wideMap(b, n, sites)
				q := Query{Model: "m-0", Kind: target.Chat, Key: "acme-prod", Scopes: []string{"eu"}}
				// The longest way: the homes are not known, all others are warm.
				_, list := m.Explain(q, noon)
				for i, s := range m.hints.sightingsOf(q.Target) {
					if id := m.sites[s.site].ID; id == list[0].Site || id == list[1].Site {
						m.hints.sightingsOf(q.Target)[i].life = 0
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					if c := m.Pick(q, noon); !c.Redirect {
						b.Fatal(c.Reason)
					}
				}
			})
		}
	}
}

func BenchmarkLocation(b *testing.B) {
	site := &Site{ID: "site-fr-1", URL: "https://fr-1.example.com"}
	token := strings.Repeat("x", 330)
	b.ReportAllocs()
	for b.Loop() {
		_ = Location(site, "/v1/chat/completions?a=b", token)
	}
}

func BenchmarkPush(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := bigMap(n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := NewStore(here, nil).Push(data, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPushHints(b *testing.B) {
	m := wideMap(b, 60_000, 200)
	s := NewStore(here, nil)
	s.swap(State{Map: m})
	data := append([]byte(`{"hints":`), m.hints.json...)
	data = append(data, '}')
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.PushHints(b.Context(), data); err != nil {
			b.Fatal(err)
		}
	}
}
