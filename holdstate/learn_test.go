// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/target"
)

// bubble runs f with a machine in fake time, and has it at rest at the end.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide, Linger: 30 * time.Second, Cooldown: 10 * time.Second})
		f(t, r)
		pass(time.Hour)
		r.requireAtRest(t)
	})
}

// wakeUp has a model woken in d, by one request that is served then.
func (r *rig) wakeUp(t *testing.T, target target.Target, d time.Duration) {
	t.Helper()
	w := r.hold(t, Request{Target: target})
	pass(d)
	replica := r.up(target, 1)
	require.Equal(t, Granted, w.Status().State)
	r.finish(w)
	r.down(target, replica)
}

// retries is all that RetryAfter says in many calls, each once.
func retries(r *rig, model string) []int {
	var all []int
	for range 500 {
		all = append(all, r.RetryAfter(model))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestRetryAfterIsThirtyUntilThreeWakesWereSeen(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *rig) {
		t.Helper()
		for range 3 {
			require.Equal(t, []int{30}, retries(r, "llama"))
			r.wakeUp(t, llama, 4*time.Second)
		}
		require.Equal(t, []int{4}, retries(r, "llama"))
		require.Equal(t, []int{30}, retries(r, "qwen"), "another model")
		require.Equal(t, []time.Duration{4 * time.Second, 4 * time.Second, 4 * time.Second}, r.learned("llama"))
		pass(24 * time.Hour)
		r.requireAtRest(t)
		require.Equal(t, []int{4}, retries(r, "llama"), "it outlives the waiters")
	})
}

func TestTheTimesOfAWake(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *rig) {
		t.Helper()
		times := func() []time.Duration {
			expected, running := r.WakeTimes("llama")
			return []time.Duration{expected, running}
		}
		for range 3 {
			require.Equal(t, []time.Duration{0, 0}, times())
			r.wakeUp(t, llama, 4*time.Second)
		}
		require.Equal(t, []time.Duration{4 * time.Second, 0}, times())
		w := r.hold(t, Request{Target: llama})
		pass(9 * time.Second)
		require.Equal(t, []time.Duration{4 * time.Second, 9 * time.Second}, times())
		w.Report(Leave)
		pass(20 * time.Second)
		require.Equal(t, []time.Duration{4 * time.Second, 29 * time.Second}, times(), "the model is still wanted")
		pass(11 * time.Second)
		require.Equal(t, []time.Duration{4 * time.Second, 0}, times())
	})
}

func TestRetryAfterIsWhatIsLeftOfTheWake(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *rig) {
		t.Helper()
		for range 3 {
			r.wakeUp(t, llama, 40*time.Second)
		}
		require.Equal(t, []int{36, 37, 38, 39, 40}, retries(r, "llama"), "no wake runs")
		w := r.hold(t, Request{Target: llama})
		require.Equal(t, []int{36, 37, 38, 39, 40}, retries(r, "llama"))
		pass(20 * time.Second)
		require.Equal(t, []int{18, 19, 20}, retries(r, "llama"))
		pass(10*time.Second + time.Millisecond)
		require.Equal(t, []int{9, 10}, retries(r, "llama"), "rounded up")
		pass(9 * time.Second)
		require.Equal(t, []int{1}, retries(r, "llama"))
		pass(time.Hour)
		require.Equal(t, []int{1}, retries(r, "llama"), "longer than usual")
		w.Report(Expire)
		require.Equal(t, []int{1}, retries(r, "llama"), "the model is wanted still")
		pass(30 * time.Second)
		require.Equal(t, []int{36, 37, 38, 39, 40}, retries(r, "llama"), "the wake was given up")
		require.Len(t, r.learned("llama"), 3)
	})
}

func TestRetryAfterIsFromOneToSixtyAndSpread(t *testing.T) {
	t.Parallel()
	tests := map[time.Duration][]int{
		0:                       {30}, // it was up all the time
		minWake - 1:             {30},
		minWake:                 {1},
		time.Second:             {1},
		1001 * time.Millisecond: {2},
		9 * time.Second:         {9},
		10 * time.Second:        {9, 10},
		59 * time.Second:        {54, 55, 56, 57, 58, 59},
		time.Minute:             {54, 55, 56, 57, 58, 59, 60},
		5 * time.Minute:         {54, 55, 56, 57, 58, 59, 60},
		300 * time.Hour:         {54, 55, 56, 57, 58, 59, 60},
	}
	for took, want := range tests {
		t.Run(took.String(), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, r *rig) {
				t.Helper()
				for range 3 {
					r.wakeUp(t, llama, took)
				}
				require.Equal(t, want, retries(r, "llama"))
			})
		})
	}
}

// TestAWakeIsTheModels measures wakes during which the waiters change.
func TestAWakeIsTheModels(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		live func(t *testing.T, r *rig)
		want []time.Duration
	}{
		"from the first waiter to the first replica": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama})
			pass(5 * time.Second)
			r.hold(t, Request{Target: llama})
			pass(5 * time.Second)
			r.up(llama, 0)
			pass(5 * time.Second)
			r.up(llama, 0)
		}, []time.Duration{10 * time.Second}},
		"its first waiter left": {func(t *testing.T, r *rig) {
			t.Helper()
			first := r.hold(t, Request{Target: llama})
			pass(5 * time.Second)
			r.hold(t, Request{Target: llama})
			first.Report(Leave)
			pass(5 * time.Second)
			r.up(llama, 0)
		}, []time.Duration{10 * time.Second}},
		"all its waiters left, and it is wanted still": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama}).Report(Leave)
			pass(29 * time.Second)
			r.up(llama, 0)
			r.up(llama, 0)
		}, []time.Duration{29 * time.Second}},
		"a retry goes on with it": {func(t *testing.T, r *rig) {
			t.Helper()
			for range 4 {
				r.hold(t, Request{Target: llama}).Report(Leave)
				pass(20 * time.Second)
			}
			r.hold(t, Request{Target: llama})
			r.up(llama, 0)
		}, []time.Duration{80 * time.Second}},
		"given up when nobody wants it": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama}).Report(Leave)
			pass(30 * time.Second)
			r.up(llama, 0)
		}, nil},
		"begun anew after it was given up": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama}).Report(Leave)
			pass(time.Minute)
			r.hold(t, Request{Target: llama})
			pass(time.Second)
			r.up(llama, 0)
		}, []time.Duration{time.Second}},
		"woken ahead, without a waiter": {func(_ *testing.T, r *rig) {
			r.Want("llama", time.Minute)
			pass(10 * time.Second)
			r.up(llama, 0)
		}, nil},
		"woken ahead, then a waiter": {func(t *testing.T, r *rig) {
			t.Helper()
			r.Want("llama", time.Minute)
			pass(10 * time.Second)
			r.hold(t, Request{Target: llama})
			pass(10 * time.Second)
			r.up(llama, 0)
		}, []time.Duration{10 * time.Second}},
		"a replica of another kind or model": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama})
			pass(5 * time.Second)
			r.up(embed, 0)
			r.up(qwen, 0)
			pass(5 * time.Second)
			r.up(llama, 0)
		}, []time.Duration{10 * time.Second}},
		"two kinds woken together are one wake": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama})
			r.hold(t, Request{Target: embed})
			pass(5 * time.Second)
			r.up(embed, 0)
			r.up(llama, 0)
		}, []time.Duration{5 * time.Second}},
		"a replica is there": {func(t *testing.T, r *rig) {
			t.Helper()
			r.up(llama, 0)
			r.hold(t, Request{Target: llama})
			pass(5 * time.Second)
			r.up(llama, 0)
		}, nil},
		"the replica was lost for a moment": {func(t *testing.T, r *rig) {
			t.Helper()
			replica := r.up(llama, 0)
			r.hold(t, Request{Target: llama})
			r.down(llama, replica)
			r.hold(t, Request{Target: llama})
			pass(time.Second)
			r.up(llama, 0)
		}, nil},
		"its engine refused": {func(t *testing.T, r *rig) {
			t.Helper()
			w := r.hold(t, Request{Target: llama})
			pass(5 * time.Second)
			replica := r.up(llama, 1)
			grant := w.Status().Grant
			r.slots.drop(llama, replica)
			w.Report(Back)
			grant.Release()
			require.Equal(t, Held, w.Status().State)
			pass(time.Second)
			r.up(llama, 0)
		}, []time.Duration{5 * time.Second}},
		"a request in its old place": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama, Seq: 7})
			pass(time.Second)
			r.up(llama, 0)
		}, nil},
		"a wait for a slot": {func(t *testing.T, r *rig) {
			t.Helper()
			r.queue(t, Request{Target: qwen})
			r.queue(t, Request{Target: llama})
			pass(time.Second)
			r.up(llama, 0)
		}, nil},
		"it failed": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama})
			r.Want("llama", time.Hour)
			r.Fail("llama", "no GPU")
			require.Zero(t, r.waking.Load())
			pass(10 * time.Second)
			r.hold(t, Request{Target: llama})
			pass(time.Second)
			r.up(llama, 0)
		}, []time.Duration{time.Second}},
		"the router shuts down": {func(t *testing.T, r *rig) {
			t.Helper()
			r.hold(t, Request{Target: llama})
			r.Drain()
			pass(time.Second)
			r.up(llama, 0)
		}, []time.Duration{time.Second}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, r *rig) {
				t.Helper()
				tt.live(t, r)
				require.Equal(t, tt.want, r.learned("llama"))
				require.Empty(t, r.learned("qwen"))
				r.Drain()
			})
		})
	}
}

// TestTheLastTwentyWakesCount against the plainest reading of the rule.
func TestTheLastTwentyWakesCount(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		took := rapid.SliceOfN(rapid.Int64Range(0, int64(90*time.Second)), 0, 70).Draw(t, "wakes")
		var h history
		for _, d := range took {
			h.add(time.Duration(d))
		}
		if len(took) < 3 {
			require.Zero(t, h.p90)
			return
		}
		last := slices.Clone(took[max(0, len(took)-20):])
		slices.Sort(last)
		rank := int(math.Ceil(0.9 * float64(len(last))))
		require.Equal(t, max(1, last[rank-1]), int64(h.p90))
		notAbove := slices.IndexFunc(last, func(d int64) bool { return d > int64(h.p90) })
		if notAbove >= 0 {
			require.GreaterOrEqual(t, 10*notAbove, 9*len(last), "nine of ten were done by then")
		}
	})
}

func TestSpreadTakesAtMostATenth(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(t, "left"))
		most := int(max(1, min(60, math.Ceil(d.Seconds()))))
		got := spread(d)
		require.LessOrEqual(t, got, most)
		require.GreaterOrEqual(t, got, most-most/10)
	})
}

// TestTheModelUnusedForLongestIsForgotten at the bound.
func TestTheModelUnusedForLongestIsForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	name := func(i int) string { return fmt.Sprint("model ", i) }
	learn := func(i int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for range 3 {
			r.wakes.learn(name(i), time.Second)
		}
	}
	for i := range modelsKept {
		learn(i)
	}
	require.Equal(t, 1, r.RetryAfter(name(0)), "and so it is used")
	learn(modelsKept)
	require.Equal(t, 1, r.RetryAfter(name(0)))
	require.Equal(t, 30, r.RetryAfter(name(1)), "forgotten")
	require.Equal(t, 1, r.RetryAfter(name(modelsKept)))
	for i := range 3 * modelsKept {
		require.Equal(t, 30, r.RetryAfter(fmt.Sprint("never held ", i)))
	}
	require.Len(t, r.wakes.byModel, modelsKept)
	require.Equal(t, modelsKept, r.wakes.recent.Len())
}

func TestOnWakeMayCallTheMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slots := newFakeSlots()
		var m *Machine
		var retries []int
		m = New(Options{Limits: wide, Slots: slots, OnWake: func(name string, _ time.Duration) {
			retries = append(retries, m.RetryAfter(name))
		}})
		for range 3 {
			w, err := m.Hold(slots.claiming(Request{Target: llama}))
			require.NoError(t, err)
			pass(2 * time.Second)
			replica := slots.add(llama, 1)
			m.Update(llama)
			w.Report(Done).Grant.Release()
			slots.drop(llama, replica)
			m.Update(llama)
		}
		require.Equal(t, []int{30, 30, 2}, retries)
	})
}

// TestRetryAfterAllocatesNothing runs alone: allocations are counted for the process.
func TestRetryAfterAllocatesNothing(t *testing.T) {
	r := newRig(Options{Limits: wide})
	r.wakes.learn("llama", time.Second)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if r.RetryAfter("llama") != 30 || r.RetryAfter("qwen") != 30 {
			t.Error("too little is known")
		}
	}))
}
