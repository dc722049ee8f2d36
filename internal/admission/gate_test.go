// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/holdstate"
)

func admitted(t *testing.T, g *gate, q gateRequest) *reservation {
	t.Helper()
	r, err := g.reserve(q)
	require.NoError(t, err)
	require.NotNil(t, r)
	return r
}

func refused(t *testing.T, g *gate, q gateRequest) {
	t.Helper()
	r, err := g.reserve(q)
	require.NoError(t, err)
	require.Nil(t, r)
}

func TestTheBudgetIsNineTenthsOfAllReplicas(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tokens   int64
		replicas int
		want     int64
	}{
		"one":                {262144, 1, 235929},
		"three":              {262144, 3, 707788},
		"none counts as one": {100, 0, 90},
		"rounded down":       {11, 1, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var g gate
			q := gateRequest{model: "m", limits: limits{tokens: tt.tokens}, replicas: tt.replicas, tokens: tt.want, share: 1}
			admitted(t, &g, q).Release()
			q.tokens++
			_, err := g.reserve(q)
			require.ErrorIs(t, err, holdstate.ErrTooLarge)
			budget := q.limits.times(tt.replicas).budget()
			require.Equal(t, tt.want, budget)
		})
	}
}

func TestTheInflightCapHasNoFraction(t *testing.T) {
	t.Parallel()
	var g gate
	q := gateRequest{model: "m", limits: limits{requests: 2}, replicas: 2, tokens: 1 << 40, share: 1}
	var reservations []*reservation
	for range 4 {
		reservations = append(reservations, admitted(t, &g, q))
	}
	refused(t, &g, q)
	q.replicas = 3
	reservations = append(reservations, admitted(t, &g, q))
	q.replicas = 1
	refused(t, &g, q)
	q.retry = true
	reservations = append(reservations, admitted(t, &g, q))
	for _, r := range reservations {
		r.Release()
		r.Release()
	}
	requests, tokens := g.reserved("m")
	require.Zero(t, requests)
	require.Zero(t, tokens)
	require.Empty(t, g.models)
}

func TestAKeyOverItsShareDoesNotWait(t *testing.T) {
	t.Parallel()
	var g gate
	q := gateRequest{model: "m", limits: limits{tokens: 1000}, replicas: 2, tokens: 300, key: "acme", share: 0.25}
	first := admitted(t, &g, q)
	_, err := g.reserve(q)
	require.ErrorIs(t, err, holdstate.ErrOverShare, "600 of 500")
	q.tokens = 200
	second := admitted(t, &g, q)
	q.tokens = 501
	_, err = g.reserve(q)
	require.ErrorIs(t, err, holdstate.ErrOverShareAlways)
	q.key = "other"
	q.tokens = 500
	other := admitted(t, &g, q)
	q.share, q.key, q.tokens = 1, "whole", 900
	refused(t, &g, q)
	for _, r := range []*reservation{first, second, other} {
		r.Release()
	}
	require.Empty(t, g.models)
}

func TestWithoutLimitsEverybodyIsLetIn(t *testing.T) {
	t.Parallel()
	var g gate
	admitted(t, &g, gateRequest{model: "m", tokens: 1 << 50, key: "k", share: 0.1}).Release()
	require.Empty(t, g.models)
}

// TestTheBooksAreRight makes and releases reservations for several keys and models, and
// compares the gate's sums with its own at every step.
func TestTheBooksAreRight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var g gate
		type run struct {
			asked       gateRequest
			reservation *reservation
		}
		var runs []run
		limits := limits{requests: rapid.Int64Range(0, 4).Draw(t, "inflight"), tokens: rapid.Int64Range(0, 50).Draw(t, "tokens")}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			if len(runs) > 0 && rapid.Bool().Draw(t, "end one") {
				i := rapid.IntRange(0, len(runs)-1).Draw(t, "which")
				runs[i].reservation.Release()
				runs = append(runs[:i], runs[i+1:]...)
				continue
			}
			q := gateRequest{
				model: rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"), limits: limits,
				replicas: rapid.IntRange(0, 3).Draw(t, "replicas"), tokens: rapid.Int64Range(0, 40).Draw(t, "size"),
				key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key"), share: rapid.SampledFrom([]float64{0.3, 1}).Draw(t, "share"),
				retry: rapid.IntRange(0, 9).Draw(t, "again") == 0,
			}
			var requests, tokens, ofKey int64
			for _, r := range runs {
				if r.asked.model == q.model {
					requests++
					tokens += r.asked.tokens
					if r.asked.key == q.key && r.asked.share < 1 {
						ofKey += r.asked.tokens
					}
				}
			}
			n := int64(max(1, q.replicas))
			share := int64(q.share * float64(limits.tokens*n))
			shared := q.key != "" && q.share < 1 && limits.tokens > 0
			large := limits.tokens > 0 && q.tokens > limits.tokens*n*9/10
			reservation, err := g.reserve(q)
			switch {
			case q.retry:
				require.NotNil(t, reservation)
			case large:
				require.ErrorIs(t, err, holdstate.ErrTooLarge)
			case shared && q.tokens > share:
				require.ErrorIs(t, err, holdstate.ErrOverShareAlways)
			case shared && ofKey+q.tokens > share:
				require.ErrorIs(t, err, holdstate.ErrOverShare)
			default:
				require.NoError(t, err)
				fits := (limits.requests == 0 || requests < limits.requests*n) && (limits.tokens == 0 || tokens+q.tokens <= limits.tokens*n*9/10)
				require.Equal(t, fits, reservation != nil)
			}
			if reservation != nil {
				runs = append(runs, run{q, reservation})
				requests, tokens = requests+1, tokens+q.tokens
			}
			gotRequests, gotTokens := g.reserved(q.model)
			require.Equal(t, []int64{requests, tokens}, []int64{gotRequests, gotTokens})
		}
		for _, r := range runs {
			r.reservation.Release()
		}
		require.Empty(t, g.models)
	})
}
