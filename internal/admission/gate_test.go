// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/holdstate"
)

func admitted(t *testing.T, g *Gate, a Ask) *Reservation {
	t.Helper()
	r, err := g.Admit(a)
	require.NoError(t, err)
	require.NotNil(t, r)
	return r
}

func noRoom(t *testing.T, g *Gate, a Ask) {
	t.Helper()
	r, err := g.Admit(a)
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
			var g Gate
			a := Ask{Model: "m", Limits: Limits{Tokens: tt.tokens}, Replicas: tt.replicas, Tokens: tt.want, Share: 1}
			admitted(t, &g, a).Release()
			a.Tokens++
			_, err := g.Admit(a)
			require.ErrorIs(t, err, holdstate.ErrTooLarge)
			_, budget := a.Limits.Budget(tt.replicas)
			require.Equal(t, tt.want, budget)
		})
	}
}

func TestTheInflightCapHasNoFraction(t *testing.T) {
	t.Parallel()
	var g Gate
	a := Ask{Model: "m", Limits: Limits{Inflight: 2}, Replicas: 2, Tokens: 1 << 40, Share: 1}
	var rooms []*Reservation
	for range 4 {
		rooms = append(rooms, admitted(t, &g, a))
	}
	noRoom(t, &g, a)
	a.Replicas = 3
	rooms = append(rooms, admitted(t, &g, a))
	a.Replicas = 1
	noRoom(t, &g, a)
	a.Again = true
	rooms = append(rooms, admitted(t, &g, a))
	for _, r := range rooms {
		r.Release()
		r.Release()
	}
	requests, tokens := g.InHand("m")
	require.Zero(t, requests)
	require.Zero(t, tokens)
	require.Empty(t, g.models)
}

func TestAKeyOverItsShareDoesNotWait(t *testing.T) {
	t.Parallel()
	var g Gate
	a := Ask{Model: "m", Limits: Limits{Tokens: 1000}, Replicas: 2, Tokens: 300, Key: "acme", Share: 0.25}
	first := admitted(t, &g, a)
	_, err := g.Admit(a)
	require.ErrorIs(t, err, holdstate.ErrOverShare, "600 of 500")
	a.Tokens = 200
	second := admitted(t, &g, a)
	a.Tokens = 501
	_, err = g.Admit(a)
	require.ErrorIs(t, err, holdstate.ErrOverShareAlways)
	a.Key = "other"
	a.Tokens = 500
	other := admitted(t, &g, a)
	a.Share, a.Key, a.Tokens = 1, "whole", 900
	noRoom(t, &g, a)
	for _, r := range []*Reservation{first, second, other} {
		r.Release()
	}
	require.Empty(t, g.models)
}

func TestWithoutLimitsEverybodyIsLetIn(t *testing.T) {
	t.Parallel()
	var g Gate
	admitted(t, &g, Ask{Model: "m", Tokens: 1 << 50, Key: "k", Share: 0.1}).Release()
	require.Empty(t, g.models)
}

// TestTheBooksAreRight lets requests of several keys and models come and go and
// counts what is in hand anew at every step.
func TestTheBooksAreRight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var g Gate
		type run struct {
			ask  Ask
			room *Reservation
		}
		var runs []run
		limits := Limits{Inflight: rapid.Int64Range(0, 4).Draw(t, "inflight"), Tokens: rapid.Int64Range(0, 50).Draw(t, "tokens")}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			if len(runs) > 0 && rapid.Bool().Draw(t, "end one") {
				i := rapid.IntRange(0, len(runs)-1).Draw(t, "which")
				runs[i].room.Release()
				runs = append(runs[:i], runs[i+1:]...)
				continue
			}
			a := Ask{
				Model: rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"), Limits: limits,
				Replicas: rapid.IntRange(0, 3).Draw(t, "replicas"), Tokens: rapid.Int64Range(0, 40).Draw(t, "size"),
				Key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key"), Share: rapid.SampledFrom([]float64{0.3, 1}).Draw(t, "share"),
				Again: rapid.IntRange(0, 9).Draw(t, "again") == 0,
			}
			var requests, tokens, ofKey int64
			for _, r := range runs {
				if r.ask.Model == a.Model {
					requests++
					tokens += r.ask.Tokens
					if r.ask.Key == a.Key && r.ask.Share < 1 {
						ofKey += r.ask.Tokens
					}
				}
			}
			n := int64(max(1, a.Replicas))
			share := int64(a.Share * float64(limits.Tokens*n))
			shared := a.Key != "" && a.Share < 1 && limits.Tokens > 0
			large := limits.Tokens > 0 && a.Tokens > limits.Tokens*n*9/10
			room, err := g.Admit(a)
			switch {
			case a.Again:
				require.NotNil(t, room)
			case large:
				require.ErrorIs(t, err, holdstate.ErrTooLarge)
			case shared && a.Tokens > share:
				require.ErrorIs(t, err, holdstate.ErrOverShareAlways)
			case shared && ofKey+a.Tokens > share:
				require.ErrorIs(t, err, holdstate.ErrOverShare)
			default:
				require.NoError(t, err)
				fits := (limits.Inflight == 0 || requests < limits.Inflight*n) && (limits.Tokens == 0 || tokens+a.Tokens <= limits.Tokens*n*9/10)
				require.Equal(t, fits, room != nil)
			}
			if room != nil {
				runs = append(runs, run{a, room})
				requests, tokens = requests+1, tokens+a.Tokens
			}
			gotRequests, gotTokens := g.InHand(a.Model)
			require.Equal(t, []int64{requests, tokens}, []int64{gotRequests, gotTokens})
		}
		for _, r := range runs {
			r.room.Release()
		}
		require.Empty(t, g.models)
	})
}
