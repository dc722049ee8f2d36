// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/target"
)

func TestLoadsListsTheModelsWithLimits(t *testing.T) {
	t.Parallel()
	bubble(t, "{max_inflight: 4, admit_budget_tokens: 100}, other: {aliases: [o]}, z: {max_inflight: 2}", func(r *rig) {
		t := r.t
		sleeping := Load{Model: "m", RequestLimit: 4, TokenLimit: 90}
		z := Load{Model: "z", RequestLimit: 2}
		require.ElementsMatch(t, []Load{sleeping, z}, r.Loads(), "a model that sleeps counts as one replica")

		r.join("a", "", 9)
		r.join("b", "", 9)
		r.join("c", "", 9, "embedding")
		g, _ := r.take(r.request(30))
		all := Load{Model: "m", Requests: 1, RequestLimit: 8, Tokens: 30, TokenLimit: 180}
		require.ElementsMatch(t, []Load{all, z}, r.Loads(), "the kind with most replicas counts")
		g.Release()
		g.Release()
		all.Requests, all.Tokens = 0, 0
		require.ElementsMatch(t, []Load{all, z}, r.Loads())
	})
}

func TestAModelWithoutLimitsIsNotCounted(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(r *rig) {
		t := r.t
		r.join("a", "", 9)
		g, _ := r.take(r.request(1 << 40))
		require.Empty(t, r.Loads())
		requests, tokens := r.gate.reserved("m")
		require.Zero(t, requests)
		require.Zero(t, tokens)
		g.Release()
	})
}

// A request behind others learns only whether it can have room at all.
func TestBehindOthersNothingIsReserved(t *testing.T) {
	t.Parallel()
	bubble(t, "{admit_budget_tokens: 100}", func(r *rig) {
		t := r.t
		r.join("a", "", 9)
		room, err := r.request(10).Admit(true)
		require.NoError(t, err)
		require.Nil(t, room, "though there is room")
		_, err = r.request(91).Admit(true)
		require.ErrorIs(t, err, holdstate.ErrTooLarge)
		requests, _ := r.gate.reserved("m")
		require.Zero(t, requests)

		again := r.request(91)
		again.unanswered = true
		room, err = again.Admit(true)
		require.NoError(t, err)
		require.NotNil(t, room, "it was admitted before")
		requests, tokens := r.gate.reserved("m")
		require.Equal(t, []int64{1, 91}, []int64{requests, tokens})
		room.Release()
	})
}

func TestAShareIsOfAllReplicas(t *testing.T) {
	t.Parallel()
	bubble(t, "{admit_budget_tokens: 100}", func(r *rig) {
		t := r.t
		quarter := &access.Key{ID: "quarter", Share: 0.25}
		of := func(tokens int64) *Attempts { return r.of(quarter, tokens) }
		_, err := of(26).Admit(false)
		require.ErrorIs(t, err, holdstate.ErrOverShareAlways)
		r.join("a", "", 9)
		r.join("b", "", 9)
		g, _ := r.take(of(26))
		_, err = of(25).Admit(false)
		require.ErrorIs(t, err, holdstate.ErrOverShare, "51 of 50")
		_, _, err = look(of(25))
		require.ErrorIs(t, err, holdstate.ErrOverShare)
		_, _ = r.take(of(24))
		_, _ = r.take(r.request(100)) // of another caller
		room, err := r.request(31).Admit(false)
		require.NoError(t, err)
		require.Nil(t, room, "181 of 180: it may wait")
		g.Release()
		_, _ = r.take(of(26))
	})
}

func TestAReplicaIsLeftAloneByTheRequestThatItDiedUnder(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"without steps": "{max_inflight: 9}", "with steps": "{max_inflight: 9, steps: [{name: near, match: {region: eu}}, {name: any}]}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, text, func(r *rig) {
				t := r.t
				a := r.join("a", "eu", 9)
				q := r.request(0)
				for _, pause := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 2 * time.Second} {
					g, _ := r.take(q)
					g.Failed("it dropped the connection", true)
					g.Release()
					pass(200 * time.Millisecond)
					a.Report(pb.State_STATE_SERVING)
					require.Equal(t, holdstate.Later, r.took(q))
					require.Equal(t, holdstate.Taken, r.took(r.request(0)), "others may use it")
					_, slot, err := look(q)
					require.NoError(t, err)
					require.False(t, slot)
					pass(pause - 200*time.Millisecond - time.Nanosecond)
					require.Equal(t, holdstate.Later, r.took(q))
					before := r.changes.Load()
					pass(time.Nanosecond)
					require.Equal(t, before+1, r.changes.Load(), "those who wait are told")
					require.Equal(t, holdstate.Taken, r.took(q))
				}
			})
		})
	}
}

func TestAPauseIsOfOneReplica(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(r *rig) {
		t := r.t
		a := r.join("a", "", 9)
		q := r.request(0)
		g, _ := r.take(q)
		g.Failed("it dropped the connection", true)
		g.Release()
		a.Report(pb.State_STATE_SERVING)
		r.join("b", "", 1)
		taken, on := r.take(q)
		require.Equal(t, "b", on)
		require.Equal(t, holdstate.Later, r.took(q), "b is full, and a is for later")
		taken.Release()
	})
}

func TestDuringAPauseAStepHasOnlyItsOwnReplicas(t *testing.T) {
	t.Parallel()
	bubble(t, nearThenAny, func(r *rig) {
		t := r.t
		a := r.join("a", "eu", 9)
		q := r.request(0)
		q.died(agentregtest.AddressOf("a"))
		a.Report(pb.State_STATE_SERVING)
		require.Equal(t, holdstate.Later, r.took(q))
		r.join("b", "us", 1)
		g, on := r.take(q)
		require.Equal(t, "b", on)
		require.Equal(t, "far", g.step)
	})
}

// A replica that refused the request did not die under it.
func TestARefusalMakesNoPause(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(r *rig) {
		t := r.t
		a := r.join("a", "", 9)
		q := r.request(0)
		g, _ := r.take(q)
		g.Failed("connection refused", false)
		g.Release()
		require.Equal(t, holdstate.Full, r.took(q), "it is out of routing")
		a.Report(pb.State_STATE_SERVING)
		require.Equal(t, holdstate.Taken, r.took(q))
		require.True(t, q.Unanswered())
	})
}

// bubbleTB hides the test's deadline, which a bubble may not ask for.
type bubbleTB struct{ rapid.TB }

// anyAttempts is a request's attempts in any state.
func (r *rig) anyAttempts(t *rapid.T) *Attempts {
	w := &Attempts{
		capacity: r.Capacity, Target: chatOfM,
		Key:        &access.Key{ID: rapid.SampledFrom([]string{"", "k"}).Draw(t, "key"), Share: rapid.SampledFrom([]float64{0.3, 1}).Draw(t, "share")},
		Tokens:     rapid.Int64Range(0, 120).Draw(t, "tokens"),
		lastOpen:   rapid.IntRange(0, 2).Draw(t, "reach"),
		unanswered: rapid.Bool().Draw(t, "again"),
	}
	for _, step := range []string{"eu", "us", "any"} {
		if n := rapid.Int64Range(0, 2).Draw(t, "tries in "+step); n > 0 {
			if w.tries == nil {
				w.tries = map[string]int64{}
			}
			w.tries[step] = n
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if rapid.IntRange(0, 3).Draw(t, "died on "+id) == 0 {
			w.died(agentregtest.AddressOf(id))
		}
	}
	return w
}

// What looks has the results of what acts.
func TestADryRunHasTheResultsOfTheClaim(t *testing.T) {
	t.Parallel()
	policies := []string{
		"", "{max_inflight: 2}", "{admit_budget_tokens: 100}",
		"{max_inflight: 3, admit_budget_tokens: 60, steps: [{name: eu, match: {region: eu}, max_tries: 1}, {name: us, match: {region: us}, max_tries: 2}]}",
		"{steps: [{name: eu, match: {region: eu}}, {name: us, match: {region: us}, max_tries: 1}, {name: any, max_tries: 2}]}",
	}
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubbleTB{t}, func(t *rapid.T) {
			r := newRig(t.Context(), t, rapid.SampledFrom(policies).Draw(t, "policy"))
			for _, id := range []string{"a", "b", "c"} {
				if region := rapid.SampledFrom([]string{"none", "eu", "us"}).Draw(t, "region of "+id); region != "none" {
					r.join(id, region, rapid.Uint32Range(1, 2).Draw(t, "slots of "+id))
				}
			}
			for range rapid.IntRange(0, 3).Draw(t, "slots in use") {
				_, _ = r.registry.TakeFrom(chatOfM, nil)
			}
			for range rapid.IntRange(0, 3).Draw(t, "requests in hand") {
				_, _ = r.of(&access.Key{ID: "k", Share: 0.5}, 15).Admit(false)
			}

			q := r.anyAttempts(t)
			room, slot, err := look(q)
			got, gotErr := q.Admit(false)
			require.Equal(t, gotErr, err)
			require.Equal(t, got != nil, room)
			if err != nil {
				return
			}
			_, took := q.Take(unlimited{})
			require.Equal(t, took == holdstate.Taken, slot)
		})
	})
}

func TestAnotherKindHasItsOwnReplicas(t *testing.T) {
	t.Parallel()
	bubble(t, "{max_inflight: 1}", func(r *rig) {
		t := r.t
		r.join("a", "", 9, "embedding")
		require.False(t, r.Serving(chatOfM))
		require.True(t, r.Serving(target.Target{Model: "m", Kind: target.Embedding}))
		require.Equal(t, holdstate.Full, r.took(r.request(0)))
	})
}
