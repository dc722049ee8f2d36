// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLimits fills each limit alone and reads what the next request gets.
func TestLimits(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		limits Limits
		fill   []Request
		over   Request
		fits   Request // another request at the same moment, which the limit does not touch
	}{
		"per model, all its kinds together": {
			Limits{PerModel: 2, PerKey: 9, Total: 9, Bytes: 9},
			[]Request{{Target: llama}, {Target: embed}},
			Request{Target: llama},
			Request{Target: qwen},
		},
		"per key and model": {
			Limits{PerModel: 9, PerKey: 2, Total: 9, Bytes: 9},
			[]Request{{Target: llama, Key: "a"}, {Target: llama, Key: "a"}},
			Request{Target: llama, Key: "a"},
			Request{Target: llama, Key: "b"},
		},
		"the same key asks for another model": {
			Limits{PerModel: 9, PerKey: 1, Total: 9, Bytes: 9},
			[]Request{{Target: llama, Key: "a"}},
			Request{Target: embed, Key: "a"},
			Request{Target: qwen, Key: "a"},
		},
		"no key, no limit per key": {
			Limits{PerModel: 9, PerKey: 1, Total: 9, Bytes: 9},
			[]Request{{Target: llama}, {Target: llama}, {Target: llama, Key: "a"}},
			Request{Target: llama, Key: "a"},
			Request{Target: llama},
		},
		"in total": {
			Limits{PerModel: 9, PerKey: 9, Total: 2, Bytes: 9},
			[]Request{{Target: llama}, {Target: qwen}},
			Request{Target: embed},
			Request{},
		},
		"bytes": {
			Limits{PerModel: 9, PerKey: 9, Total: 9, Bytes: 10},
			[]Request{{Target: llama, Bytes: 4}, {Target: qwen, Bytes: 4}},
			Request{Target: llama, Bytes: 3},
			Request{Target: llama, Bytes: 2},
		},
		"bytes of one model, all its kinds together": {
			Limits{PerModel: 9, PerKey: 9, Total: 9, Bytes: 10, BytesPerModel: 5},
			[]Request{{Target: llama, Bytes: 2}, {Target: embed, Bytes: 3}},
			Request{Target: llama, Bytes: 1},
			Request{Target: qwen, Bytes: 5},
		},
		"duplicates take places": {
			Limits{PerModel: 2, PerKey: 9, Total: 9, Bytes: 9},
			[]Request{{Target: llama, Key: "a", ClientIDs: [2]string{idA}}, {Target: llama, Key: "a", ClientIDs: [2]string{idA}}},
			Request{Target: llama, Key: "a", ClientIDs: [2]string{idA}},
			Request{Target: qwen},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(Options{Limits: tt.limits})
			var ws []*Waiter
			for _, req := range tt.fill {
				ws = append(ws, r.hold(t, req))
			}
			demand := r.Demand(tt.over.Target.Model)

			w, err := r.Hold(tt.over)
			require.ErrorIs(t, err, ErrFull)
			require.Nil(t, w)
			require.Equal(t, 1, r.counted(OutcomeFull), "counted once")
			require.Equal(t, demand, r.Demand(tt.over.Target.Model), "a refused request is no demand")

			if tt.fits.Target.Model != "" {
				ws = append(ws, r.hold(t, tt.fits))
			}
			ws[len(tt.fill)-1].Report(Leave)
			ws = append(ws, r.hold(t, tt.over)) // the place that came free
			for _, w := range ws {
				w.Report(Leave)
			}
			require.Equal(t, 1, r.counted(OutcomeFull))
			r.requireAtRest(t)
		})
	}
}

// Where no other model may be held, one may have all.
func TestAModelThatIsAloneMayHaveAllBytes(t *testing.T) {
	t.Parallel()
	others := false
	r := newRig(Options{
		Limits: Limits{PerModel: 9, PerKey: 9, Total: 9, Bytes: 10, BytesPerModel: 5},
		Others: func(model string) bool { return others && model == "llama" },
	})
	ws := []*Waiter{r.hold(t, Request{Target: llama, Bytes: 5}), r.hold(t, Request{Target: llama, Bytes: 4})}
	others = true
	_, err := r.Hold(Request{Target: llama, Bytes: 1})
	require.ErrorIs(t, err, ErrFull)
	require.ErrorIs(t, r.WouldHold(Request{Target: llama, Bytes: 1}), ErrFull)
	ws = append(ws, r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: qwen, Bytes: 1}))
	for _, w := range ws {
		w.Report(Leave)
	}
	r.requireAtRest(t)
}

func TestARefusedModelLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: Limits{Bytes: 1}})
	for i := range 100 {
		_, err := r.Hold(Request{Target: llama, Bytes: int64(i)})
		require.ErrorIs(t, err, ErrFull)
	}
	require.Equal(t, 100, r.counted(OutcomeFull))
	require.Empty(t, r.wanted("llama"))
	r.requireAtRest(t)
}

func TestAPlaceIsFreeWithTheSlotAndBytesWithTheBody(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: Limits{PerModel: 1, PerKey: 1, Total: 1, Bytes: 10, QueueDepth: 1}})
	w := r.hold(t, Request{Target: llama, Key: "a", Bytes: 10})
	replica := r.up(llama, 0)
	require.Equal(t, Admitted, w.Status().State)
	_, err := r.Hold(Request{Target: llama})
	require.ErrorIs(t, err, ErrFull, "a released waiter counts until it has a slot")

	replica.free = 1
	r.Update(llama)
	require.Equal(t, Granted, w.Status().State)
	_, err = r.Hold(Request{Target: qwen, Bytes: 1})
	require.ErrorIs(t, err, ErrFull, "the engine has not answered yet")
	other := r.hold(t, Request{Target: qwen})
	other.Report(Leave)

	r.finish(w)
	r.hold(t, Request{Target: qwen, Key: "a", Bytes: 10}).Report(Leave)
	r.requireAtRest(t)
}

func TestAnUpdateReleasesAllWaitersAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	var ws []*Waiter
	for i := range 50 {
		ws = append(ws, r.hold(t, Request{Target: llama, Key: fmt.Sprint("key", i%5)}))
	}
	same, other := r.hold(t, Request{Target: embed}), r.hold(t, Request{Target: qwen})
	r.Update(llama)
	require.NotContains(t, states(ws...), Admitted, "nobody serves")
	require.True(t, r.Waiting(llama))

	replica := r.up(llama, 0)
	for _, w := range ws {
		require.Equal(t, Admitted, w.Status().State)
		select {
		case <-w.Changed():
		default:
			require.Fail(t, "Changed has no value")
		}
	}
	require.Equal(t, 51, r.Demand("llama"), "demand until the slot")
	require.Equal(t, []State{Held, Held}, states(same, other), "another kind, another model")
	require.Zero(t, r.counted(OutcomeReleased), "no end yet")

	replica.free = 50
	r.Update(llama)
	require.Equal(t, 1, r.Demand("llama"))
	for _, w := range ws {
		require.NotNil(t, w.Status().Grant)
		r.finish(w)
	}
	same.Report(Expire)
	other.Report(Leave)
	require.Equal(t, map[Outcome]int{OutcomeReleased: 50, OutcomeExpired: 1, OutcomeDisconnected: 1}, r.outcomes)
	require.Zero(t, r.Demand("llama"))
	r.requireAtRest(t)
}

func TestAWaiterThatComesToAFreeSlotGetsItAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	r.up(llama, 1)
	w := r.hold(t, Request{Target: llama})
	require.Equal(t, Granted, w.Status().State)
	require.Equal(t, "10.0.0.1:8000", w.Status().Grant.Replica().Address)
	require.False(t, r.Waiting(llama))
	next := r.hold(t, Request{Target: llama})
	require.Equal(t, Admitted, next.Status().State)
	require.True(t, r.Waiting(llama))
	require.False(t, r.Waiting(qwen))
	r.finish(w)
	r.finish(next)
	require.Equal(t, 2, r.counted(OutcomeReleased))
	r.requireAtRest(t)
}

func TestTheLastReplicaLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	first := r.hold(t, Request{Target: llama, Key: "a"})
	second := r.hold(t, Request{Target: llama, Key: "a"})
	one, two := r.slots.add(llama, 0), r.slots.add(llama, 0)
	r.Update(llama)
	r.down(llama, one)
	require.Equal(t, []State{Admitted, Admitted}, states(first, second), "another replica serves")
	r.down(llama, two)
	require.Equal(t, []State{Held, Held}, states(first, second))
	third := r.hold(t, Request{Target: llama, Key: "a"})
	require.Equal(t, 3, r.Demand("llama"))

	r.up(llama, 1)
	require.Equal(t, []State{Granted, Admitted, Admitted}, states(first, second, third), "the places were kept")
	r.finish(first)
	r.finish(second)
	r.finish(third)
	require.Equal(t, map[Outcome]int{OutcomeReleased: 3}, r.outcomes, "counted once")
	r.requireAtRest(t)
}
