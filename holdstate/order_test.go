// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// grantNext does what a granted slot does to a queue.
func (q *queue) grantNext() *Waiter {
	w := q.first()
	if w != nil {
		q.endTurn(w)
		q.remove(w)
	}
	return w
}

// first returns the waiter whose turn it is, nil when none waits.
func (q *queue) first() *Waiter {
	for w := range q.inTurn() {
		return w
	}
	return nil
}

// TestInTurnIsTheOrderOfTheGrants, also when each waiter leaves as it is yielded.
func TestInTurnIsTheOrderOfTheGrants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "d"})).Draw(t, "keys")
		var stay, leave, grant queue
		for _, q := range []*queue{&stay, &leave, &grant} {
			arrivals(q, keys...)
		}
		var left []*Waiter
		for w := range leave.inTurn() {
			leave.remove(w)
			left = append(left, w)
		}
		want := seqs(granted(&grant))
		require.Equal(t, want, seqs(slices.Collect(stay.inTurn())))
		require.Equal(t, want, seqs(left))
		require.Zero(t, leave.n)
	})
}

func arrivals(q *queue, keys ...string) []*Waiter {
	ws := make([]*Waiter, 0, len(keys))
	for i, key := range keys {
		w := &Waiter{turnKey: key, seq: uint64(i + 1)}
		q.add(w)
		ws = append(ws, w)
	}
	return ws
}

func seqs(ws []*Waiter) []uint64 {
	all := make([]uint64, 0, len(ws))
	for _, w := range ws {
		all = append(all, w.seq)
	}
	return all
}

func granted(q *queue) []*Waiter {
	var ws []*Waiter
	for w := q.grantNext(); w != nil; w = q.grantNext() {
		ws = append(ws, w)
	}
	return ws
}

func TestALightKeyIsAmongTheFirst(t *testing.T) {
	t.Parallel()
	var q queue
	arrivals(&q, "a", "a", "a", "a", "b", "a", "c")
	require.Equal(t, []uint64{1, 5, 7, 2, 3, 4, 6}, seqs(granted(&q)))
	require.Nil(t, q.first())
}

func TestATurnIsSpentOnlyByAGrant(t *testing.T) {
	t.Parallel()
	var q queue
	ws := arrivals(&q, "a", "b", "a", "b")
	q.remove(ws[0]) // the client left: "a" keeps its turn
	require.Equal(t, []uint64{3, 2, 4}, seqs(granted(&q)))
}

func TestAWaiterComesBackInItsPlace(t *testing.T) {
	t.Parallel()
	var q queue
	ws := arrivals(&q, "a", "a", "a", "a")
	require.Equal(t, ws[0], q.grantNext())
	require.Equal(t, ws[1], q.grantNext())
	q.add(ws[1])
	q.add(ws[0])
	require.Equal(t, ws, granted(&q))
}

func TestEachMayRemoveTheOneItIsCalledWith(t *testing.T) {
	t.Parallel()
	var q queue
	ws := arrivals(&q, "a", "b", "a", "c", "b", "a")
	var seen []*Waiter
	q.each(func(w *Waiter) {
		seen = append(seen, w)
		if w != ws[4] {
			q.remove(w)
		}
	})
	require.ElementsMatch(t, ws, seen)
	require.Equal(t, 1, q.n)
	require.Equal(t, ws[4], q.first())
}

// TestQueueAgainstSlices compares a queue with the rule written with slices: the keys in
// the order of their turns, and each key's numbers sorted.
func TestQueueAgainstSlices(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			q     queue
			seq   uint64
			away  []*Waiter
			in    []*Waiter
			turns []string
		)
		enter := func(w *Waiter) {
			if !slices.Contains(turns, w.turnKey) {
				turns = append(turns, w.turnKey)
			}
			in = append(in, w)
			q.add(w)
		}
		leave := func(w *Waiter) {
			in = slices.DeleteFunc(in, func(o *Waiter) bool { return o == w })
			if !slices.ContainsFunc(in, func(o *Waiter) bool { return o.turnKey == w.turnKey }) {
				turns = slices.DeleteFunc(turns, func(key string) bool { return key == w.turnKey })
			}
			away = append(away, w)
		}
		first := func() *Waiter {
			var least *Waiter
			for _, w := range in {
				if w.turnKey == turns[0] && (least == nil || w.seq < least.seq) {
					least = w
				}
			}
			return least
		}
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				seq++
				enter(&Waiter{turnKey: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key"), seq: seq})
			},
			"come back": func(t *rapid.T) {
				if len(away) == 0 {
					t.Skip("nobody is away")
				}
				i := rapid.IntRange(0, len(away)-1).Draw(t, "who")
				w := away[i]
				away = slices.Delete(away, i, i+1)
				enter(w)
			},
			"leave": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip("nobody waits")
				}
				w := rapid.SampledFrom(in).Draw(t, "who")
				q.remove(w)
				leave(w)
			},
			"grant": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip("nobody waits")
				}
				w := first()
				require.Same(t, w, q.grantNext())
				turns = append(turns[1:], turns[0])
				leave(w)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(in), q.n)
				require.Len(t, q.byKey, len(turns))
				require.Equal(t, len(turns), q.turns.Len())
				if len(in) == 0 {
					require.Nil(t, q.first())
				} else {
					require.Same(t, first(), q.first())
				}
			},
		})
	})
}
