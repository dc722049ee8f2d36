// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// aware waits until the routers know one another.
func aware(t *testing.T, routers []*Holds) {
	t.Helper()
	polltest.Until(t, "the routers know one another", func() bool {
		return !slices.ContainsFunc(routers, func(h *Holds) bool { return h.client.LastRouters() < len(routers) })
	})
}

// try asks h n times for a hold of the model m, and returns the holds that it counts.
func try(h *Holds, n int) (held []holdstate.SiteHold) {
	for range n {
		if one, fits := h.Hold("m", ""); fits {
			one.Join() // as the machine does
			held = append(held, one)
		}
	}
	return held
}

// leave ends holds, and waits until nothing is counted.
func leave(t *testing.T, routers []*Holds, held []holdstate.SiteHold) {
	t.Helper()
	for _, one := range held {
		one.Leave()
	}
	polltest.Until(t, "nothing is counted", func() bool { return none(t, routers) })
}

// However late the answers are: the server never grants more than the limit, and beside it each
// router but the one that was last granted something takes at most its part alone.
func TestLateAnswersHoldAtMostThePartsOfTheOthersTooMany(t *testing.T) {
	t.Parallel()
	const limit, each = 1000, 1000
	for _, patience := range []time.Duration{0, time.Millisecond, shared.CallTimeout, longestAsk} {
		t.Run(fmt.Sprint(patience), func(t *testing.T) {
			routers := holdRouters(valkeytest.Start(t), 3, HoldLimits{PerModel: limit, PerKey: limit, Total: limit})
			aware(t, routers)
			for _, h := range routers {
				h.patience = patience
			}
			held := herd(routers, each)
			t.Logf("held: %d of %d", len(held), limit)
			require.LessOrEqual(t, len(held), limit+2*(limit/3))
			require.GreaterOrEqual(t, len(held), limit/3, "a router has its part")
			for _, h := range routers {
				h.patience = patient
			}
			polltest.Until(t, "the limit is used", func() bool {
				held = append(held, try(routers[0], 1)...)
				return len(held) >= limit
			})
			leave(t, routers, held)
		})
	}
}

// herd has each router asked for n holds at once, and returns those that they count.
func herd(routers []*Holds, n int) (held []holdstate.SiteHold) {
	var asking sync.WaitGroup
	begin, fit := make(chan struct{}), make(chan holdstate.SiteHold, len(routers)*n)
	for _, h := range routers {
		for range n {
			asking.Go(func() {
				<-begin
				for _, one := range try(h, 1) {
					fit <- one
				}
			})
		}
	}
	close(begin)
	asking.Wait()
	close(fit)
	for one := range fit {
		held = append(held, one)
	}
	return held
}

// The other router has 6 of 10. However often this one asks without waiting, it takes no more than
// the rest, and it has the rest in the end.
func TestALateAnswerIsNoIfTheLimitIsReachedAsFarAsIsKnown(t *testing.T) {
	t.Parallel()
	routers := holdRouters(valkeytest.Start(t), 2, HoldLimits{PerModel: 10, PerKey: 10, Total: 20})
	held := try(routers[1], 6)
	require.Len(t, held, 6)
	h := routers[0]
	require.True(t, h.WouldHold("m", ""))
	h.patience = 0
	polltest.Until(t, "the rest is held", func() bool {
		held = append(held, try(h, 1)...)
		return len(held) == 10
	})
	require.Empty(t, try(h, 20))
	require.Equal(t, 4, h.held(holdLimit{model: "m"}))
	require.Positive(t, h.Alone())
	leave(t, routers, held)
}

func TestASilentServerLeavesEachRouterItsPart(t *testing.T) {
	t.Parallel()
	server := valkeytest.StartReal(t)
	routers := holdRouters(server, 3, HoldLimits{PerModel: 30, PerKey: 30, Total: 40})
	aware(t, routers)
	held := try(routers[1], 6)
	held = append(held, try(routers[0], 3)...)
	require.Len(t, held, 9)
	resume := server.Pause()
	routers[0].patience = longestAsk
	begin := time.Now()
	alone := try(routers[0], 30)
	require.Len(t, alone, (30-9)/3)
	require.Less(t, time.Since(begin), time.Second, "not each of them waits")
	require.EqualValues(t, 30, routers[0].Alone())
	resume()
	polltest.Until(t, "what was held alone is written", func() bool {
		return routers[0].client.Up() && countOf(routers[0].written(t, holdLimit{})[routers[0].client.ID()]) == 3+len(alone)
	})
	leave(t, routers, append(held, alone...))
}

func TestWithoutTheServerARouterDecidesAlone(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	routers := holdRouters(server, 2, HoldLimits{PerModel: 10, PerKey: 10, Total: 10})
	aware(t, routers)
	held := try(routers[0], 4)
	held = append(held, try(routers[1], 2)...)
	require.Len(t, held, 6)
	server.Stop()
	polltest.Until(t, "the router is alone", func() bool {
		_ = routers[1].WouldHold("m", "")
		return !routers[1].client.Up()
	})
	begin := time.Now()
	held = append(held, try(routers[1], 10)...)
	if time.Since(begin) < shared.Life/4 {
		require.Len(t, held, 6+2, "its part of what was free")
	}
	polltest.Until(t, "its own limits are in force", func() bool {
		held = append(held, try(routers[1], 1)...)
		return routers[1].held(holdLimit{}) == 10
	})
	require.Less(t, time.Since(begin), shared.Life+time.Second)
	require.Empty(t, try(routers[1], 10))
	server.Restart()
	polltest.Until(t, "the counts are written again", func() bool {
		return routers[0].client.Up() && len(routers[0].written(t, holdLimit{})) == 2
	})
	require.Empty(t, try(routers[0], 1))
	leave(t, routers, held)
}

func TestWhatIsKnownOfALimitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, err := shared.New(shared.Options{
			Address: shared.Address{URL: "valkey://127.0.0.1:1"}, Registerer: prometheus.NewRegistry(), Prefix: "hivenet_", Log: zerolog.Nop(),
		})
		require.NoError(t, err)
		h := NewHolds(client, HoldLimits{PerModel: 10, PerKey: 5, Total: 20}) // it is down: the client does not run
		model := holdLimit{model: "m"}
		h.know(&holdsCall{limits: []holdLimit{{}, model}, alone: []int{0, 0}}, []int64{18, 4}, time.Now().Add(shared.Life))
		require.Equal(t, 2, h.free(holdLimit{}, time.Now()))
		require.Equal(t, 6, h.free(model, time.Now()))
		require.Equal(t, 6, h.freeAlone(model, time.Now()), "it is the only router")
		require.Len(t, try(h, 10), 2, "of the total")
		time.Sleep(shared.Life)
		require.Equal(t, 8, h.freeAlone(model, time.Now()))
		require.Len(t, try(h, 10), 8)
		h.forget(time.Now())
		require.Empty(t, h.others)
	})
}

func TestWhatIsFreeForARouterThatDecidesAlone(t *testing.T) {
	t.Parallel()
	routers := holdRouters(valkeytest.Start(t), 3, HoldLimits{PerModel: 10, PerKey: 10, Total: 10})
	aware(t, routers)
	h := routers[0]
	l := holdLimit{model: "x"}
	for name, tc := range map[string]struct{ own, alone, others, want int }{
		"all is free":              {0, 0, 0, 3},
		"an equal part":            {1, 0, 3, 2},
		"the rest of its part":     {3, 2, 0, 1},
		"its part is taken":        {4, 3, 0, 0},
		"at least one":             {4, 0, 4, 1},
		"which it has taken":       {5, 1, 4, 0},
		"nothing is free":          {4, 0, 6, 0},
		"the others hold too many": {4, 0, 8, -2},
	} {
		t.Run(name, func(t *testing.T) {
			h.mu.Lock()
			defer h.mu.Unlock()
			set(h.counts, l, tc.own)
			set(h.alone, l, tc.alone)
			h.others[l] = others{held: tc.others, until: time.Now().Add(time.Hour)}
			require.Equal(t, tc.want, h.freeAlone(l, time.Now()))
			delete(h.counts, l)
			delete(h.alone, l)
			delete(h.others, l)
			require.Equal(t, 3, h.freeAlone(l, time.Now()), "a part of the limit if nothing is known")
		})
	}
}

func TestARequestWaitsForASilentServerOnlyForAMoment(t *testing.T) {
	t.Parallel()
	server := valkeytest.StartReal(t)
	h := holdRouters(server, 1, HoldLimits{PerModel: 10, PerKey: 10, Total: 10})[0]
	require.True(t, h.WouldHold("m", ""))
	h.patience = longestAsk
	resume := server.Pause()
	begin := time.Now()
	held := try(h, 1)
	took := time.Since(begin)
	require.GreaterOrEqual(t, took, longestAsk)
	require.Less(t, took, time.Second) // 100 ms and what a busy machine adds
	begin = time.Now()
	held = append(held, try(h, 5)...)
	require.Less(t, time.Since(begin), longestAsk, "nobody waits for a call that takes that long")
	require.Len(t, held, 6)
	resume()
	polltest.Until(t, "what was held alone is written", func() bool {
		return h.client.Up() && countOf(h.written(t, holdLimit{})[h.client.ID()]) == len(held)
	})
	leave(t, []*Holds{h}, held)
}
