// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"encoding/json/v2"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

// numbered is a map with a generation (none below 0) that holds one model.
func numbered(generation int, model string) []byte {
	number := ""
	if generation >= 0 {
		number = fmt.Sprintf(`"generation": %d, `, generation)
	}
	return fmt.Appendf(nil,
		`{%s"placements": [{"model": %q, "kind": "chat", "site": "here", "scale_from_zero": true}]}`, number, model)
}

func push(t *testing.T, s *Store, data []byte) {
	t.Helper()
	_, err := s.Push(data, false)
	require.NoError(t, err)
}

func TestAnEmptyStoreHasNoMap(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	require.Nil(t, s.Current())
	require.Zero(t, s.State())
}

func TestPushSummarises(t *testing.T) {
	t.Parallel()
	sum, err := NewStore(here, nil).Push([]byte(threeSites), false)
	require.NoError(t, err)
	text, err := json.Marshal(sum)
	require.NoError(t, err)
	require.JSONEq(t, `{"generation": 3, "sites": 2, "placements": 6, "holdable": 2, "unchanged": false}`, string(text))
}

func TestABadPushLeavesTheMapAlone(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	push(t, s, numbered(1, "a"))
	before := s.State()

	_, err := s.Push([]byte(`{"generation": 2, "x": 1}`), true)
	require.Equal(t, Problems{{Path: "x", Message: "is not a known field"}}, err)
	require.Equal(t, before, s.State())

	_, err = s.Push([]byte(strings.Repeat(" ", MaxBytes+1)), true)
	require.ErrorIs(t, err, ErrTooLarge)
	require.Equal(t, before, s.State())
}

func TestGenerations(t *testing.T) {
	t.Parallel()
	const none = -1
	for name, c := range map[string]struct {
		inForce, pushed int
		sameContent     bool
		restored, force bool
		conflict        string
		unchanged       bool
	}{
		"higher":                        {inForce: 7, pushed: 8},
		"lower":                         {inForce: 7, pushed: 6, conflict: "generation 6 is lower than 7, which is in force: raise the number, or force the push"},
		"lower, number 0":               {inForce: 7, pushed: 0, conflict: "generation 0 is lower than 7, which is in force: raise the number, or force the push"},
		"lower, forced":                 {inForce: 7, pushed: 6, force: true},
		"equal, same content":           {inForce: 7, pushed: 7, sameContent: true, unchanged: true},
		"equal, same content, forced":   {inForce: 7, pushed: 7, sameContent: true, force: true, unchanged: true},
		"equal, other content":          {inForce: 7, pushed: 7, conflict: "generation 7 is in force with other content: raise the number, or force the push"},
		"equal, other content, forced":  {inForce: 7, pushed: 7, force: true},
		"equal to a restored one":       {inForce: 7, pushed: 7, restored: true},
		"lower than a restored one":     {inForce: 7, pushed: 6, restored: true, conflict: "generation 6 is lower than 7, which is in force: raise the number, or force the push"},
		"the same as a restored one":    {inForce: 7, pushed: 7, sameContent: true, restored: true, unchanged: true},
		"without number":                {inForce: 7, pushed: none},
		"after one without":             {inForce: none, pushed: 0},
		"both without":                  {inForce: none, pushed: none},
		"both without and same content": {inForce: none, pushed: none, sameContent: true, unchanged: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewStore(here, nil)
			first, model := parse(t, string(numbered(c.inForce, "a"))), "b"
			if c.sameContent {
				model = "a"
			}
			if c.restored {
				s.putRestored(first, time.Now())
			} else {
				push(t, s, first.JSON())
			}

			sum, err := s.Push(numbered(c.pushed, model), c.force)
			if c.conflict != "" {
				var conflict *ConflictError
				require.ErrorAs(t, err, &conflict)
				require.Equal(t, ConflictError{Pushed: int64(c.pushed), InForce: int64(c.inForce)}, *conflict)
				require.EqualError(t, err, c.conflict)
				require.Equal(t, []string{"a"}, s.Current().Models())
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.unchanged, sum.Unchanged)
			require.Equal(t, []string{model}, s.Current().Models())
			require.Equal(t, SourcePushed, s.State().Source)
		})
	}
}

func TestTheSameMapAgainIsReceivedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		s := NewStore(here, func(_, _ *Map) { changes++ })
		push(t, s, numbered(1, "a"))
		first := s.Current()
		<-time.After(time.Minute) // on the bubble's clock

		push(t, s, numbered(1, "a"))
		require.Same(t, first.core, s.Current().core)
		require.Equal(t, time.Now(), s.State().ReceivedAt)
		require.Equal(t, time.Now(), s.Current().hints.received)
		require.Equal(t, 1, changes)
	})
}

func TestOnChangeSeesEachSwapInOrder(t *testing.T) {
	t.Parallel()
	type seen struct{ old, new string }
	name := func(m *Map) string {
		if m == nil {
			return "none"
		}
		return m.Models()[0]
	}
	var got []seen
	var s *Store
	s = NewStore(here, func(o, n *Map) {
		got = append(got, seen{name(o), name(n)})
		if name(n) == "b" {
			// No lock is held, so this does not block; it is told afterwards.
			push(t, s, numbered(3, "c"))
			require.Equal(t, "c", name(s.Current()))
			require.Len(t, got, 2)
		}
	})
	push(t, s, numbered(1, "a"))
	push(t, s, numbered(2, "b"))
	_, err := s.Push(numbered(1, "d"), false)
	require.Error(t, err)
	require.Equal(t, []seen{{"none", "a"}, {"a", "b"}, {"b", "c"}}, got)
}

// Readers see whole maps only, the writers' changes form one chain, and the
// last change told is the map in force.
func TestPushAgainstCurrent(t *testing.T) {
	t.Parallel()
	const writers, pushes = 4, 50
	var mu sync.Mutex
	var told []change
	s := NewStore(here, func(o, n *Map) {
		require.True(t, mu.TryLock(), "one call at a time")
		told = append(told, change{o, n})
		mu.Unlock()
	})
	done := make(chan struct{})
	var readers, pushers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				st := s.State()
				if st.Map == nil {
					continue
				}
				model := st.Map.Models()[0]
				if _, ok := st.Map.Here(target.Target{Model: model, Kind: target.Chat}); !ok || st.Source != SourcePushed {
					t.Errorf("a map in parts: %q", model)
					return
				}
			}
		})
	}
	for w := range writers {
		pushers.Go(func() {
			for i := range pushes {
				if _, err := s.Push(numbered(-1, fmt.Sprintf("m-%d-%d", w, i)), false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	pushers.Wait()
	close(done)
	readers.Wait()

	require.Len(t, told, writers*pushes)
	var last *Map
	for _, c := range told {
		require.Same(t, last, c.old)
		last = c.new
	}
	require.Same(t, last, s.Current())
}

// Of many writers that push increasing numbers, only ever a higher one wins.
func TestGenerationsNeverGoBack(t *testing.T) {
	t.Parallel()
	var told []int64
	s := NewStore(here, func(_, n *Map) { told = append(told, n.Generation()) })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 50 {
				_, _ = s.Push(numbered(i, "a"), false)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 49, s.Current().Generation())
	require.IsIncreasing(t, told)
	require.EqualValues(t, 49, told[len(told)-1])
}
