// SPDX-License-Identifier: Apache-2.0

package divide

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShares(t *testing.T) {
	t.Parallel()
	idle, busy := Need{}, Need{Waiting: 100}
	for name, c := range map[string]struct {
		slots int
		needs []Need
		want  []int
	}{
		"no router":                          {4, nil, []int{}},
		"one router has all":                 {4, []Need{idle}, []int{4}},
		"idle routers have an even part":     {5, []Need{idle, idle}, []int{3, 2}},
		"more idle routers than slots":       {2, []Need{idle, idle, idle}, []int{1, 1, 0}},
		"a lone busy router has all":         {4, []Need{idle, busy, idle}, []int{0, 4, 0}},
		"what it does not want is spread":    {6, []Need{{Taken: 2, Waiting: 1}, idle}, []int{4, 2}},
		"the rest is for the idle":           {4, []Need{{Taken: 2, Waiting: 1}, idle}, []int{3, 1}},
		"two busy ones":                      {5, []Need{busy, busy}, []int{3, 2}},
		"little is wanted, and granted":      {8, []Need{busy, {Waiting: 1}, busy}, []int{4, 1, 3}},
		"each that waits has one":            {3, []Need{busy, {Taken: 1}, busy, busy}, []int{1, 0, 1, 1}},
		"the first ones, if there are fewer": {2, []Need{busy, {Waiting: 1}, busy}, []int{1, 1, 0}},
		"no slots":                           {0, []Need{busy, idle}, []int{0, 0}},
		"nothing moves while none waits":     {4, []Need{{Share: 3}, {Share: 1, Taken: 3}}, []int{3, 1}},
		"who has none gets one":              {4, []Need{{Share: 4, Taken: 4}, {}}, []int{4, 0}},
		"who came when others are idle":      {4, []Need{{Share: 4, Taken: 1}, {}}, []int{2, 2}},
		"a part came back":                   {4, []Need{{Share: 1}, {Share: 1}}, []int{2, 2}},
	} {
		require.Equal(t, c.want, Shares(c.slots, c.needs), name)
	}
}

// What a max-min fair division is, for any needs: no router could have more without another
// one that has less getting even less.
func TestSharesAreMaxMinFair(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		slots := r.IntN(12)
		needs := make([]Need, 1+r.IntN(5))
		waiting := 0
		for i := range needs {
			needs[i] = Need{Share: r.IntN(4), Taken: r.IntN(5), Waiting: r.IntN(4) * r.IntN(2)}
			waiting += min(needs[i].Waiting, 1)
		}
		shares := Shares(slots, needs)
		requireDivision(t, slots, needs, shares, waiting)
		for i := range needs {
			needs[i].Share = shares[i]
		}
		require.Equal(t, shares, Shares(slots, needs), "the same again: %d %+v", slots, needs)
	}
}

func requireDivision(t *testing.T, slots int, needs []Need, shares []int, waiting int) {
	t.Helper()
	sum := 0
	for i, n := range needs {
		sum += shares[i]
		if n.Waiting == 0 {
			continue
		}
		if slots >= waiting {
			require.Positive(t, shares[i], "%d of %d %+v", i, slots, needs)
		}
		for j, other := range needs {
			floor := min(other.Waiting, 1)
			if shares[i] < n.wants(slots) && shares[j] > floor {
				require.LessOrEqual(t, shares[j], shares[i]+1, "%d waits, %d has more of %d: %+v %v", i, j, slots, needs, shares)
			}
		}
	}
	require.Equal(t, slots, sum, "%+v %v", needs, shares)
}
