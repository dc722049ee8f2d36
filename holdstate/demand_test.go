// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/target"
)

const (
	idA = "6f9619ff-8b86-4d11-b42d-00cf4fc964ff"
	idB = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
)

func TestDemandCountsDistinctRequests(t *testing.T) {
	t.Parallel()
	upper := strings.ToUpper(idA)
	req := func(key, client, request string) Request {
		return Request{Target: llama, Key: key, ClientIDs: [2]string{client, request}}
	}
	tests := map[string]struct {
		requests []Request
		demand   int
	}{
		"no id, each its own":                    {[]Request{req("a", "", ""), req("a", "", ""), req("", "", "")}, 3},
		"the same id":                            {[]Request{req("a", idA, ""), req("a", idA, "")}, 1},
		"the same id without a key":              {[]Request{req("", idA, ""), req("", idA, "")}, 1},
		"any letter case":                        {[]Request{req("a", idA, ""), req("a", upper, "")}, 1},
		"another id":                             {[]Request{req("a", idA, ""), req("a", idB, "")}, 2},
		"another key":                            {[]Request{req("a", idA, ""), req("b", idA, ""), req("", idA, "")}, 3},
		"the client's id before the request's":   {[]Request{req("a", idA, idB), req("a", idA, idA)}, 1},
		"one request id, two client ids":         {[]Request{req("a", idA, idB), req("a", idB, idB)}, 2},
		"the request's id alone":                 {[]Request{req("a", "", idA), req("a", idA, "")}, 1},
		"a client id that is no UUID is ignored": {[]Request{req("a", "attempt-1", idA), req("a", "attempt-2", idA)}, 1},
		"no UUID at all":                         {[]Request{req("a", "same", "same"), req("a", "same", "same")}, 2},
		"braces":                                 {[]Request{req("a", "{"+idA+"}", ""), req("a", "{"+idA+"}", "")}, 2},
		"a URN":                                  {[]Request{req("a", "urn:uuid:"+idA, ""), req("a", "urn:uuid:"+idA, "")}, 2},
		"bare digits":                            {[]Request{req("a", strings.ReplaceAll(idA, "-", ""), ""), req("a", idA, "")}, 2},
		"blanks around":                          {[]Request{req("a", idA+" ", ""), req("a", idA+" ", "")}, 2},
		"one kind or another": {
			[]Request{req("a", idA, ""), {Target: embed, Key: "a", ClientIDs: [2]string{idA}}}, 1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(Options{Limits: wide})
			var ws []*Waiter
			for _, req := range tt.requests {
				ws = append(ws, r.hold(t, req))
			}
			require.Equal(t, tt.demand, r.Demand("llama"))
			require.Equal(t, len(ws), r.Machine.held, "each takes a place")
			for _, w := range ws {
				w.Report(Leave)
			}
			require.Zero(t, r.Demand("llama"))
			require.Equal(t, len(ws), r.counted(OutcomeDisconnected))
			r.requireAtRest(t)
		})
	}
}

// TestIdentityAgainstTheForm spells the canonical form out digit by digit.
func TestIdentityAgainstTheForm(t *testing.T) {
	t.Parallel()
	canonical := func(s string) bool {
		groups := strings.Split(s, "-")
		if len(groups) != 5 {
			return false
		}
		for i, n := range []int{8, 4, 4, 4, 12} {
			if len(groups[i]) != n || strings.Trim(groups[i], "0123456789abcdefABCDEF") != "" {
				return false
			}
		}
		return true
	}
	shape := rapid.StringMatching(`[0-9a-fA-Fg]{7,9}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}.[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`)
	exact := rapid.StringMatching(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(exact, shape, rapid.String()).Draw(t, "id")
		same := identityOf("k", s) == identityOf("k", strings.ToLower(s))
		require.Equal(t, canonical(s), same, "%q", s)
	})
}

func TestADuplicateKeepsTheDemand(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	again := Request{Target: llama, Key: "a", ClientIDs: [2]string{idA}}
	first, second := r.hold(t, again), r.hold(t, again)
	r.up(llama, 1)
	require.Equal(t, []State{Granted, Admitted}, states(first, second))
	require.Equal(t, 1, r.Demand("llama"))
	second.Report(Leave)
	require.Zero(t, r.Demand("llama"))
	r.finish(first)
	r.requireAtRest(t)
}

func TestAModelLingersAfterAWaiterThatLeftUnserved(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		leave   func(*rig, *Waiter)
		lingers bool
	}{
		"the client went away":       {func(_ *rig, w *Waiter) { w.Report(Leave) }, true},
		"the budget ran out":         {func(_ *rig, w *Waiter) { w.Report(Expire) }, true},
		"went away without a slot":   {func(r *rig, w *Waiter) { r.up(llama, 0); w.Report(Leave) }, true},
		"waited too long for a slot": {func(r *rig, w *Waiter) { r.up(llama, 0); w.Report(TimeOut) }, false},
		"got its slot":               {func(r *rig, w *Waiter) { r.up(llama, 1); r.finish(w) }, false},
		"the placement was removed":  {func(r *rig, _ *Waiter) { r.Reconcile(func(target.Target) bool { return false }) }, false},
		"the router shuts down":      {func(r *rig, _ *Waiter) { r.Drain() }, true},
		"the wake failed":            {func(r *rig, _ *Waiter) { r.Fail("llama", "no quota") }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(Options{Limits: wide, Linger: 30 * time.Second})
				w := r.hold(t, Request{Target: llama})
				require.True(t, r.Wanted("llama"))
				pass(time.Minute)
				tt.leave(r, w)
				require.Zero(t, r.Demand("llama"))
				lingers := r.Wanted("llama")
				require.Equal(t, tt.lingers, lingers)
				if tt.lingers {
					pass(30*time.Second - 1)
					require.True(t, r.Wanted("llama"))
					require.Equal(t, []bool{true}, r.wanted("llama"), "its end was not reported yet")
					pass(1)
				}
				require.False(t, r.Wanted("llama"))
				require.Equal(t, []bool{true, false}, r.wanted("llama"), "one call for each edge")
				pass(time.Hour)
				require.Len(t, r.wanted("llama"), 2)
				r.requireAtRest(t)
			})
		})
	}
}

func TestALingerIsExtendedNeverCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide, Linger: 30 * time.Second})
		first, second := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
		first.Report(Leave)
		pass(20 * time.Second)
		second.Report(Leave)
		pass(29 * time.Second)
		require.True(t, r.Wanted("llama"))
		pass(time.Second)
		require.False(t, r.Wanted("llama"))
		require.Equal(t, []bool{true, false}, r.wanted("llama"))

		r.Want("llama", time.Minute)
		r.Want("llama", time.Second)
		r.hold(t, Request{Target: llama}).Report(Leave)
		pass(time.Minute - 1)
		require.True(t, r.Wanted("llama"))
		require.Zero(t, r.Demand("llama"), "a want is no demand")
		pass(1)
		require.False(t, r.Wanted("llama"))
		require.Equal(t, []bool{true, false, true, false}, r.wanted("llama"))
		r.requireAtRest(t)
	})
}

func TestAWishEndsWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide})
		r.Want("llama", time.Minute)
		w := r.hold(t, Request{Target: llama})
		pass(time.Hour)
		require.True(t, r.Wanted("llama"))
		w.Report(Leave)
		require.False(t, r.Wanted("llama"), "no linger is set")
		require.Equal(t, []bool{true, false}, r.wanted("llama"))
		r.requireAtRest(t)
	})
}

func TestEachChangeOfAWishIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide})
		one, two := r.hold(t, Request{Target: llama}), r.hold(t, Request{Target: llama})
		r.Want("llama", time.Minute)
		r.Want("llama", time.Second) // is over before
		one.Report(Leave)
		two.Report(Leave)
		r.Want("llama", time.Hour)
		r.hold(t, Request{Target: llama}).Report(Leave)
		pass(time.Hour)
		require.Equal(t, []target.Need{
			{Demand: true}, {Demand: true, Ahead: 1}, {Ahead: 1}, {Ahead: 2}, {Demand: true, Ahead: 2}, {Ahead: 2}, {},
		}, r.needs("llama"))
		r.Want("llama", time.Second)
		require.Equal(t, target.Need{Ahead: 3}, r.Need("llama"), "a model that was forgotten does not count anew")
		pass(time.Second)
		r.requireAtRest(t)
	})
}

func TestAnEmptyWishLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	r.Want("llama", 0)
	r.Want("llama", -time.Second)
	require.False(t, r.Wanted("llama"))
	require.Empty(t, r.wanted("llama"))
	r.requireAtRest(t)
}

// TestALateTimerForgetsOnlyItsOwnModel lets the timer of a linger fire after its model was
// deleted and added again, as it may on a busy machine.
func TestALateTimerForgetsOnlyItsOwnModel(t *testing.T) {
	t.Parallel()
	r := newRig(Options{Limits: wide})
	w := r.hold(t, Request{Target: llama})
	old := r.models["llama"]
	w.Report(Leave)
	w = r.hold(t, Request{Target: llama})
	r.change(func() { old.report() })
	require.Equal(t, 1, r.Demand("llama"))
	w.Report(Leave)
	r.requireAtRest(t)
}

func TestOnWantedMayCallTheMachine(t *testing.T) {
	t.Parallel()
	slots := newFakeSlots()
	var m *Machine
	m = New(Options{Limits: wide, Slots: slots, OnWanted: func(name string) {
		if m.Wanted(name) {
			slots.add(llama, 1)
			m.Update(llama)
		}
	}})
	w, err := m.Hold(slots.claiming(Request{Target: llama}))
	require.NoError(t, err)
	require.Equal(t, Granted, w.Status().State)
}
