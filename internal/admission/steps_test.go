// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/policy"
)

func TestTryingStopsWhereReplicasAreFull(t *testing.T) {
	t.Parallel()
	const none, full, taken = agentreg.None, agentreg.Full, agentreg.Taken
	for name, tt := range map[string]struct {
		lastOpen int
		usedUp   string // a step without tries left
		gives    map[string]agentreg.Outcome
		tried    []string
		want     string
	}{
		"the first has a slot":                      {gives: map[string]agentreg.Outcome{"a": taken}, tried: []string{"a"}, want: "a"},
		"the first is full":                         {gives: map[string]agentreg.Outcome{"a": full, "b": taken}, tried: []string{"a"}},
		"the first has no replica":                  {gives: map[string]agentreg.Outcome{"a": none, "b": taken}, tried: []string{"a", "b"}, want: "b"},
		"the second is full then":                   {gives: map[string]agentreg.Outcome{"a": none, "b": full, "c": taken}, tried: []string{"a", "b"}},
		"no step has a replica":                     {gives: map[string]agentreg.Outcome{"a": none, "b": none, "c": none}, tried: []string{"a", "b", "c"}},
		"the second is open too":                    {lastOpen: 1, gives: map[string]agentreg.Outcome{"a": full, "b": taken}, tried: []string{"a", "b"}, want: "b"},
		"both open ones are full":                   {lastOpen: 1, gives: map[string]agentreg.Outcome{"a": full, "b": full, "c": taken}, tried: []string{"a", "b"}},
		"the second is open and has no replica":     {lastOpen: 1, gives: map[string]agentreg.Outcome{"a": full, "b": none, "c": taken}, tried: []string{"a", "b"}},
		"the first is used up":                      {usedUp: "a", gives: map[string]agentreg.Outcome{"a": taken, "b": taken}, tried: []string{"b"}, want: "b"},
		"the first is used up, and the second full": {usedUp: "a", gives: map[string]agentreg.Outcome{"b": full, "c": taken}, tried: []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps := []policy.Step{{Name: "a", MaxTries: 2}, {Name: "b"}, {Name: "c"}}
			w := Attempts{lastOpen: tt.lastOpen, tries: map[string]int64{tt.usedUp: 2}}
			var tried []string
			step := w.tryOpen(steps, func(s *policy.Step) agentreg.Outcome {
				tried = append(tried, s.Name)
				return tt.gives[s.Name]
			})
			require.Equal(t, tt.tried, tried)
			if tt.want == "" {
				require.Nil(t, step)
				return
			}
			require.Equal(t, tt.want, step.Name)
		})
	}
}

const nearThenAny = "{steps: [{name: near, match: {region: eu}, max_tries: 1}, {name: far, match: {region: us}}, {name: any}]}"

func TestTakeSaysWhyThereIsNoSlot(t *testing.T) {
	t.Parallel()
	bubble(t, nearThenAny, func(r *rig) {
		t := r.t
		require.False(t, r.Serving(chatOfM))
		require.Equal(t, holdstate.Full, r.took(r.request(0)), "no replica at all")
		r.join("e", "eu", 1)
		r.join("u", "us", 1)
		require.True(t, r.Serving(chatOfM))
		_, on := r.take(r.request(0))
		require.Equal(t, "e", on)
		q := r.request(0)
		require.Equal(t, holdstate.Unfit, r.took(q), "u has a slot, but its step is not open")
		require.True(t, q.Next())
		_, on = r.take(q)
		require.Equal(t, "u", on)
		require.Equal(t, holdstate.Full, r.took(q))
	})
}

func TestWithoutStepsAnyReplicaDoes(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"a model without steps": "{max_inflight: 9}", "a model without a policy": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, text, func(r *rig) {
				t := r.t
				require.Equal(t, holdstate.Full, r.took(r.request(0)), "no replica at all")
				r.join("e", "eu", 1)
				g, on := r.take(r.request(0))
				require.Equal(t, "e", on)
				require.Equal(t, agentregtest.AddressOf("e"), g.Replica().Address)
				require.Equal(t, holdstate.Full, r.took(r.request(0)))
				require.False(t, r.request(0).Next())
				g.Release()
				g.Release()
				require.Equal(t, holdstate.Taken, r.took(r.request(0)))
			})
		})
	}
}

// Next opens one step after the other, past those without a replica or a try.
func TestNextOpensTheNextStepWithAReplica(t *testing.T) {
	t.Parallel()
	bubble(t, nearThenAny, func(r *rig) {
		t := r.t
		q := r.request(0)
		require.False(t, q.Next(), "no step has a replica")
		require.Zero(t, q.lastOpen)
		r.join("e", "eu", 1)
		require.True(t, q.Next())
		require.Equal(t, 2, q.lastOpen, "the second has no replica")
		require.False(t, q.Next(), "there is no further one")

		r.setPolicy("{steps: [{name: near, match: {region: eu}}, {name: far, match: {engine: custom}, max_tries: 1}]}")
		q = r.request(0)
		q.tries = map[string]int64{"far": 1}
		require.False(t, q.Next(), "the next step has no try left")
	})
}

func TestATryIsSpentWhereItFailed(t *testing.T) {
	t.Parallel()
	bubble(t, "{max_inflight: 1, steps: [{name: near, match: {region: eu}, max_tries: 2}, {name: far, match: {region: us}, max_tries: 1}]}", func(r *rig) {
		t := r.t
		e := r.join("e", "eu", 4)
		u := r.join("u", "us", 4)
		q := r.request(0)
		for i, want := range []string{"e", "e", "u"} {
			require.Equal(t, i > 0, q.Unanswered())
			g, on := r.take(q)
			require.Equal(t, want, on)
			g.Failed("it refused", false)
			g.Release()
			pass(time.Second) // the registry asks a little later after a second failure in a row
			e.Report(pb.State_STATE_SERVING)
			u.Report(pb.State_STATE_SERVING)
			require.Equal(t, 2, r.replicas("m"), "both are back")
		}
		_, err := q.Admit(false)
		require.ErrorIs(t, err, holdstate.ErrTriesUsed)
		_, err = q.Admit(true)
		require.ErrorIs(t, err, holdstate.ErrTriesUsed, "behind others too")
		_, _, err = look(q)
		require.ErrorIs(t, err, holdstate.ErrTriesUsed)

		r.setPolicy("{max_inflight: 1}")
		_, on := r.take(q)
		require.NotEmpty(t, on, "a policy without steps has no tries to spend")
	})
}
