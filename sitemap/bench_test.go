// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
	target := Target{Model: strings.Clone("m-999"), Kind: Chat}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		m := store.Current()
		p, ok := m.Here(target)
		if !ok || !p.ScaleFromZero || !m.Placed(target) || !m.Holds(target.Model) {
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
			target := Target{Model: "m-3", Kind: Chat}
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := store.Current().Here(target); !ok {
					b.Fatal("not placed here")
				}
			}
		})
	}
}
