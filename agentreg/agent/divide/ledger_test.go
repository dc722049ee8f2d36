// SPDX-License-Identifier: Apache-2.0

package divide

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// start is when each test begins.
var start = time.Unix(1000, 0)

// welcome adds a router that has answered, and returns its first offer.
func (l *Ledger) welcome(id string) (r *Router, share int) {
	r = l.Join()
	r.Offer()
	l.Welcome(r, id, false, start)
	l.Divide()
	_, share = r.Offer()
	return r, share
}

// says makes a router acknowledge its last offer, with what it keeps and needs.
func (l *Ledger) says(r *Router, kept, taken, waiting int) {
	l.Use(r, Usage{Offer: r.number, Kept: kept, Taken: taken, Waiting: waiting})
	l.Divide()
}

func TestAShareRisesOnlyByWhatOthersHaveReturned(t *testing.T) {
	t.Parallel()
	l := New(4)
	one, share := l.welcome("1")
	require.Equal(t, 4, share)
	two, share := l.welcome("2")
	require.Zero(t, share, "the first one may use all")
	require.True(t, one.Due())
	_, share = one.Offer()
	require.Equal(t, 2, share)
	l.Divide()
	require.False(t, two.Due())
	l.says(one, 3, 3, 0)
	_, share = two.Offer()
	require.Equal(t, 1, share, "three requests of the first one run")
	l.Use(one, Usage{Offer: 1, Kept: 9, Taken: -1, Waiting: 1 << 40})
	require.Equal(t, 4, one.kept(), "no more than there are")
	require.Zero(t, one.usage.Taken)
	l.says(two, 1, 1, 5)
	l.says(one, 2, 2, 0)
	require.Equal(t, 2, two.share)
}

func TestARouterThatSaysNothingGetsAnEqualPart(t *testing.T) {
	t.Parallel()
	l := New(4)
	one := l.Join()
	one.Offer()
	l.Welcome(one, "1", true, start)
	two, _ := l.welcome("2")
	l.says(two, 0, 0, 9)
	require.Equal(t, 2, one.share)
	require.Zero(t, two.share)
	one.Offer()
	l.Divide()
	require.Equal(t, 2, two.share)
}

func TestRoutersTakeTurnsWhenThereAreFewerSlots(t *testing.T) {
	t.Parallel()
	l := New(1)
	var routers []*Router
	for _, id := range []string{"1", "2", "3"} {
		r, _ := l.welcome(id)
		routers = append(routers, r)
	}
	var order []string
	for range 6 {
		for _, r := range routers {
			r.Offer()
			l.says(r, r.share, r.share, 9)
		}
		for _, r := range routers {
			r.Offer()
			l.says(r, r.share, r.share, 9)
			if r.share > 0 {
				order = append(order, r.id)
			}
		}
		require.True(t, l.Scarce())
		l.NextTurn()
		l.Divide()
	}
	require.Equal(t, []string{"1", "2", "3", "1", "2", "3"}, order)
	for _, r := range routers {
		l.says(r, r.share, 0, 0)
	}
	require.False(t, l.Scarce())
}

func TestWhatALostRouterKeptIsFrozenUntilItIsBack(t *testing.T) {
	t.Parallel()
	l := New(4)
	one, _ := l.welcome("1")
	two, _ := l.welcome("2")
	one.Offer()
	l.says(one, 3, 3, 0)
	l.Leave(one, End{Now: start, Quiet: start})
	l.Divide()
	require.Equal(t, 3, l.Frozen())
	require.Equal(t, 1, two.share)
	again, _ := l.welcome("1")
	require.Zero(t, l.Frozen())
	require.Equal(t, 3, again.kept())
	l.says(again, 3, 3, 0)
	require.Equal(t, 1, two.share)
	l.says(two, 1, 1, 9)
	again.Offer()
	l.says(again, 1, 1, 0)
	require.Equal(t, 3, two.share)
	l.Leave(again, End{Now: start, Quiet: start})
	require.Equal(t, 1, l.Frozen())
	l.Reset()
	require.Zero(t, l.Frozen())
}

func TestARouterThatReturnedAllFreezesNothing(t *testing.T) {
	t.Parallel()
	l := New(4)
	one, _ := l.welcome("1")
	two, _ := l.welcome("2")
	l.Use(one, Usage{Offer: one.number, Kept: 1, Taken: 1})
	l.Leave(one, End{Now: start, Quiet: start})
	l.Divide()
	require.Equal(t, 1, l.Frozen(), "but for what Envoy carries")
	require.Equal(t, 3, two.share)
}

// A restart of the only router is not the loss of one of many.
func TestTheOnlyRouterFindsItsSlotsAfterARestart(t *testing.T) {
	t.Parallel()
	two, none := 2, 0
	for name, c := range map[string]struct {
		inFlight *int
		lastTwo  time.Duration // how long ago there were two routers; 0: never
		share    int
	}{
		"the engine reports nothing": {nil, 0, 4},
		"two requests run":           {&two, 0, 2},
		"none runs":                  {&none, 0, 4},
		"there were two just now":    {&none, time.Minute, 0},
		"there were two long ago":    {&none, time.Hour, 4},
	} {
		l := New(4)
		one, _ := l.welcome("1")
		if c.lastTwo > 0 {
			l.lastTwo = start.Add(-c.lastTwo)
		}
		l.says(one, 4, 3, 0)
		l.Leave(one, End{Now: start, Quiet: start, InFlight: c.inFlight})
		require.Equal(t, c.share, l.Join().share, name)
	}
}

func TestOthersAreAskedWhileOneWaits(t *testing.T) {
	t.Parallel()
	l := New(4)
	one, _ := l.welcome("1")
	two, _ := l.welcome("2")
	one.Offer()
	l.says(one, 2, 2, 0)
	require.False(t, l.Wanting(), "none waits")
	l.says(two, 2, 2, 5)
	require.True(t, l.Wanting(), "slots of the first may be free by now")
	l.says(one, 2, 2, 1)
	require.False(t, l.Wanting(), "it needs them")
}

func TestFrozenSlotsExpire(t *testing.T) {
	t.Parallel()
	l := frozenLedger()
	l.Expire(start.Add(GoneTime - time.Millisecond))
	require.Equal(t, 3, l.Frozen())
	l.Expire(start.Add(GoneTime))
	require.Zero(t, l.Frozen())
}

// frozenLedger has four slots, three of them frozen since start, and a router.
func frozenLedger() *Ledger {
	l := New(4)
	one, _ := l.welcome("1")
	l.welcome("2")
	l.says(one, 3, 3, 0)
	l.Leave(one, End{Now: start, Quiet: start})
	return l
}

func TestTwoReadingsOfTheEngineShowWhatHasEnded(t *testing.T) {
	t.Parallel()
	l := frozenLedger()
	at := start
	look := func(n int) int {
		at = at.Add(LookEvery)
		l.Look(at, n)
		return l.Frozen()
	}
	require.False(t, l.Look(start.Add(-time.Millisecond), 0), "it began before the end")
	require.Equal(t, 3, look(1))
	l.Look(at.Add(time.Millisecond), 1)
	require.Equal(t, 3, l.Frozen(), "too soon after the last one")
	require.Equal(t, 3, look(3), "more than before: requests were on their way")
	require.Equal(t, 3, look(2))
	require.Equal(t, 2, look(2))
	require.Equal(t, 2, look(0))
	require.Zero(t, look(0))
	require.False(t, l.Look(at.Add(LookEvery), 0), "nothing is frozen")
}

// Requests of the other routers count in the engine's number, too.
func TestRequestsOfConnectedRoutersAreNotThoseOfLostOnes(t *testing.T) {
	t.Parallel()
	l := frozenLedger()
	two := l.routers[0]
	at, released := start, uint64(0)
	round := func(n, ended int) int {
		l.Ask()
		two.Offer()
		released += uint64(ended)
		l.Use(two, Usage{Offer: two.number, Kept: 1, Taken: 1, Released: released})
		at = at.Add(LookEvery)
		l.Look(at, n)
		return l.Frozen()
	}
	for range 5 {
		require.Equal(t, 3, round(4, 0))
	}
	require.Equal(t, 3, round(2, 0), "the first one")
	require.Equal(t, 2, round(2, 0), "all may be of the lost one")
	require.Equal(t, 1, round(2, 0), "one of the two is the other router's")
	for at.Before(start.Add(GoneTime - LookEvery)) {
		require.Equal(t, 1, round(1, 3), "it is another one each time: nobody can tell")
	}
	round(1, 3)
	require.Zero(t, l.Frozen(), "ten readings in a row say the same")
}
