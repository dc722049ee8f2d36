// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"cmp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlacesAreTimesAndGrow(t *testing.T) {
	t.Parallel()
	m := New(Options{Slots: newFakeSlots()})
	now := time.Unix(1000, 5)
	require.Equal(t, uint64(1000_000_000_005), m.Place(now))
	require.Equal(t, uint64(1000_000_000_006), m.Place(now), "one moment, two places")
	require.Equal(t, uint64(1000_000_000_007), m.Place(now.Add(-time.Hour)), "a clock that was set back")
	require.Equal(t, uint64(1060_000_000_005), m.Place(now.Add(time.Minute)))
	require.Equal(t, uint64(1060_000_000_006), m.Place(time.Time{}))

	var places sync.Map
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			last := uint64(0)
			for range 1000 {
				next := m.Place(now)
				if _, twice := places.LoadOrStore(next, true); twice || next <= last {
					t.Errorf("place %d after %d, or twice", next, last)
				}
				last = next
			}
		})
	}
	all.Wait()
}

func TestAnIdentityIsTheSameOnEveryRouter(t *testing.T) {
	t.Parallel()
	require.Equal(t, identity(0x8ce1e0063d084a62), identityOf("k", idA), "a version that hashes otherwise counts requests twice")
	require.Equal(t, identityOf("k", idA), identityOf("k", "", idA))
	require.NotEqual(t, identityOf("k", idA), identityOf("l", idA))
	require.NotEqual(t, identityOf("k", idA), identityOf("k", idB))
	one, other := identityOf("k", "no UUID"), identityOf("k", "no UUID")
	require.NotEqual(t, one, other)
}

// sorted returns the waiting requests of a level by their places.
func sorted(l Level) []Standing {
	slices.SortFunc(l.Waiting, func(a, b Standing) int { return cmp.Compare(a.Place, b.Place) })
	return l.Waiting
}

func TestALevelHasWhatTheSiteNeeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		var left []Standing
		r := newRig(Options{
			Limits: wide, Linger: 30 * time.Second,
			OnLevel: func(model string) { told = append(told, model) },
			OnLeft:  func(_ string, s Standing) { left = append(left, s) },
		})
		tells := func(n int) {
			t.Helper()
			require.Len(t, told, n)
			told = nil
		}
		l := r.Level("llama")
		require.True(t, l.Empty())
		one := r.hold(t, Request{Target: llama, Key: "k", ClientIDs: [2]string{idA}})
		tells(1)
		pass(time.Second)
		again := r.hold(t, Request{Target: llama, Key: "k", ClientIDs: [2]string{idA}})
		tells(0) // the same request in the same place
		two := r.hold(t, Request{Target: embed, Key: "k", ClientIDs: [2]string{idB}})
		tells(1)
		a := Standing{Identity: uint64(identityOf("k", idA)), Place: one.seq}
		b := Standing{Identity: uint64(identityOf("k", idB)), Place: two.seq}
		l = r.Level("llama")
		require.Equal(t, []Standing{a, b}, sorted(l))
		require.Zero(t, l.Released)
		require.Zero(t, l.WantedUntil)
		require.Equal(t, []string{"llama"}, r.Wanting())

		one.Report(Leave)
		tells(1) // wanted for the linger
		require.Empty(t, left, "another try of it waits")
		until := time.Now().Add(30 * time.Second)
		l = r.Level("llama")
		require.Equal(t, []Standing{a, b}, sorted(l), "a try that joined later keeps the place")
		require.Equal(t, until, l.WantedUntil)
		replica := r.up(llama, 0)
		require.Equal(t, 1, r.Level("llama").Released)
		again.Report(Leave)
		tells(1)
		require.Equal(t, []Standing{a}, left)
		r.Drain()
		tells(1)
		require.Equal(t, []Standing{a, b}, left)
		l = r.Level("llama")
		require.Empty(t, l.Waiting)
		require.False(t, l.Empty())
		pass(30 * time.Second)
		tells(1)
		l = r.Level("llama")
		require.True(t, l.Empty())
		require.Empty(t, r.Wanting())
		r.down(llama, replica)
		require.Equal(t, OutcomeDraining, two.Status().Outcome)
		r.requireAtRest(t)
	})
}

func TestARefusedHoldTellsNobody(t *testing.T) {
	t.Parallel()
	limits := wide
	limits.PerModel = 1
	told := 0
	r := newRig(Options{Limits: limits, OnLevel: func(string) { told++ }, OnLeft: func(string, Standing) { told = 100 }})
	w := r.hold(t, Request{Target: llama})
	_, err := r.Hold(Request{Target: llama})
	require.ErrorIs(t, err, ErrFull)
	require.Equal(t, 1, told)
	w.Report(Expire)
	require.Equal(t, 2, told, "nobody asks for the place of one whose time is over")
	r.requireAtRest(t)
}

// TestARequestKeepsThePlaceOfAnotherRouter, and starts no wake: the other router's wake began
// earlier.
func TestARequestKeepsThePlaceOfAnotherRouter(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			places := map[identity]uint64{}
			future := uint64(time.Now().Add(time.Hour).UnixNano())
			r := newRig(Options{Limits: wide, InOrder: inOrder, PlaceOf: func(model string, id uint64) uint64 {
				if model == "qwen" {
					return future
				}
				return places[identity(id)]
			}})
			places[identityOf("k", idA)] = r.Place(time.Now())
			places[identityOf("k", idB)] = r.Place(time.Now())
			late := r.hold(t, Request{Target: llama, Key: "k", ClientIDs: [2]string{idB}})
			require.Equal(t, places[late.id], late.seq)
			require.Zero(t, r.waking.Load())
			newer := r.hold(t, Request{Target: llama, Key: "k"})
			early := r.hold(t, Request{Target: llama, Key: "k", ClientIDs: [2]string{idA}})
			ahead := r.hold(t, Request{Target: qwen, Key: "ahead"})
			require.Less(t, ahead.seq, future)
			require.Greater(t, ahead.seq, newer.seq, "it arrived before now, whatever the other router's clock said")
			ahead.Report(Expire)
			own := r.Place(time.Now())
			again := r.hold(t, Request{Target: llama, Key: "k", ClientIDs: [2]string{idA}, Seq: own})
			require.Equal(t, own, again.seq, "what this router knows of its own request counts")
			r.up(llama, 1)
			for _, w := range []*Waiter{early, late, newer, again} {
				require.Equal(t, Granted, w.Status().State)
				r.finish(w)
			}
			first := r.queue(t, Request{Target: llama, Key: "l"})
			second := r.queue(t, Request{Target: llama, Key: "k"})
			third := r.queue(t, Request{Target: llama, Key: "k", ClientIDs: [2]string{idA}})
			require.Equal(t, places[third.id], third.seq, "in the queue for slots too")
			r.finish(first)
			require.Equal(t, []State{Granted, Admitted}, states(third, second))
			r.finish(third)
			r.finish(second)
			r.requireAtRest(t)
		})
	}
}

// TestARefusedRequestIsNotAskedFor, so that it does not lose its place.
func TestARefusedRequestIsNotAskedFor(t *testing.T) {
	t.Parallel()
	limits := wide
	limits.PerModel, limits.QueueDepth = 1, 0
	asked := 0
	r := newRig(Options{Limits: limits, PlaceOf: func(string, uint64) uint64 { asked++; return 0 }})
	w := r.hold(t, Request{Target: llama})
	require.Equal(t, 1, asked)
	_, err := r.Hold(Request{Target: llama})
	require.ErrorIs(t, err, ErrFull)
	require.ErrorIs(t, r.WouldHold(Request{Target: llama}), ErrFull)
	require.NoError(t, r.WouldHold(Request{Target: qwen}))
	r.Drain()
	_, err = r.Queue(Request{Target: llama})
	require.ErrorIs(t, err, ErrDraining)
	require.Equal(t, 1, asked)
	w.Report(Leave)
}

func TestWhatIsLeftOfACooldownCounts(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *rig) {
		t.Helper()
		refused := func() string {
			err := r.WouldHold(Request{Target: llama})
			if err == nil {
				return ""
			}
			return err.Error()
		}
		w := r.hold(t, Request{Target: llama})
		r.FailFor("llama", "elsewhere", 4*time.Second)
		require.Equal(t, &FailedError{Reason: "elsewhere"}, w.Status().Why())
		require.Equal(t, "the wake failed: elsewhere", refused())
		pass(4*time.Second - 1)
		require.NotEmpty(t, refused())
		pass(1)
		require.Empty(t, refused())
		r.Fail("llama", "here")
		r.FailFor("llama", "elsewhere", 4*time.Second)
		require.Equal(t, "the wake failed: here", refused(), "the longer cooldown counts")
		pass(10*time.Second - 1)
		require.NotEmpty(t, refused())
		pass(1)
		require.Empty(t, refused())
	})
}

func TestTheTimesOfTheSiteReplaceTheOwn(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *rig) {
		t.Helper()
		require.Empty(t, r.Times("llama"))
		var want []time.Duration
		for i := range 25 {
			took := time.Duration(i+1) * time.Second
			r.wakeUp(t, llama, took)
			want = append(want, took)
			want = want[max(0, len(want)-wakesKept):]
			require.Equal(t, want, r.Times("llama"))
		}
		r.SetTimes("llama", []time.Duration{time.Second, 2 * time.Second})
		require.Equal(t, []int{30}, retries(r, "llama"), "two are too few")
		r.wakeUp(t, llama, 5*time.Second)
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}, r.Times("llama"))
		require.Equal(t, []int{5}, retries(r, "llama"))
		r.SetTimes("qwen", append(want, 9*time.Second))
		require.Equal(t, append(want[1:], 9*time.Second), r.Times("qwen"))
	})
}
