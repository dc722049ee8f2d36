// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// patient is how long the requests of a test wait, so that a slow machine has every answer.
const patient = 20 * time.Second

// holdRouters returns the hold limits of n routers of a site.
func holdRouters(server *valkeytest.Server, n int, limits HoldLimits) []*Holds {
	all := make([]*Holds, n)
	for i := range all {
		server.Router(func(c *shared.Client) {
			all[i] = NewHolds(c, limits)
			all[i].patience = patient
		})
	}
	return all
}

// held returns what this router counts against a limit.
func (h *Holds) held(l holdLimit) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts[l]
}

// written returns the counts that the server has of a limit.
func (h *Holds) written(t *testing.T, l holdLimit) map[string]string {
	t.Helper()
	all, err := h.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Hgetall().Key(h.keyOf(l)).Build()
	}).AsStrMap()
	require.NoError(t, err)
	return all
}

// none reports whether neither the routers nor the server count anything.
func none(t *testing.T, routers []*Holds) bool {
	t.Helper()
	for _, h := range routers {
		h.mu.Lock()
		counts := len(h.counts) + len(h.alone)
		h.mu.Unlock()
		if counts > 0 {
			return false
		}
	}
	return len(routers[0].written(t, holdLimit{})) == 0
}

func TestTheRoutersHoldNoMoreThanALimitTogether(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limits  HoldLimits
		request func(i int) (model, key string)
		want    int
	}{
		"per model":         {HoldLimits{PerModel: 100, PerKey: 1000, Total: 1000}, func(i int) (string, string) { return "m", fmt.Sprint(i) }, 100},
		"per key and model": {HoldLimits{PerModel: 100, PerKey: 20, Total: 1000}, func(i int) (string, string) { return fmt.Sprint("m", i%2), "k" }, 40},
		"in total":          {HoldLimits{PerModel: 100, PerKey: 20, Total: 70}, func(i int) (string, string) { return fmt.Sprint(i % 10), "" }, 70},
		"of one":            {HoldLimits{PerModel: 1, PerKey: 1, Total: 1}, func(int) (string, string) { return "m", "k" }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			routers := holdRouters(valkeytest.Start(t), 3, tc.limits)
			var fit atomic.Int32
			var asking sync.WaitGroup
			holds := make(chan holdstate.SiteHold, 600)
			for i := range 600 {
				asking.Go(func() {
					model, key := tc.request(i)
					h, fits := routers[i%3].Hold(model, key)
					if fits {
						fit.Add(1)
						h.Join()
						holds <- h
					}
				})
			}
			asking.Wait()
			close(holds)
			require.EqualValues(t, tc.want, fit.Load())
			for h := range holds {
				h.Leave()
			}
			polltest.Until(t, "nothing is counted", func() bool { return none(t, routers) })
		})
	}
}

// The requests come and go at three routers as fast as they can. However that falls together,
// there are never more than the limit.
func TestTheLimitStandsWhileRequestsComeAndGo(t *testing.T) {
	t.Parallel()
	const limit = 10
	routers := holdRouters(valkeytest.Start(t), 3, HoldLimits{PerModel: limit, PerKey: limit, Total: limit})
	var now, most, refused atomic.Int64
	var clients sync.WaitGroup
	for i := range 45 {
		clients.Go(func() {
			for range 20 {
				h, fits := routers[i%3].Hold("m", "")
				if !fits {
					refused.Add(1)
					continue
				}
				h.Join()
				n := now.Add(1)
				raise(&most, n)
				_ = routers[i%3].WouldHold("m", "") // takes a moment
				now.Add(-1)
				h.Leave()
			}
		})
	}
	clients.Wait()
	require.LessOrEqual(t, most.Load(), int64(limit))
	require.Positive(t, refused.Load())
	polltest.Until(t, "nothing is counted", func() bool { return none(t, routers) })
}

// raise makes most at least n.
func raise(most *atomic.Int64, n int64) {
	for seen := most.Load(); n > seen; seen = most.Load() {
		if most.CompareAndSwap(seen, n) {
			return
		}
	}
}

func TestAPlaceThatOneRouterFreesIsAnothers(t *testing.T) {
	t.Parallel()
	routers := holdRouters(valkeytest.Start(t), 2, HoldLimits{PerModel: 1, PerKey: 1, Total: 1})
	first, fits := routers[0].Hold("m", "k")
	require.True(t, fits)
	_, fits = routers[1].Hold("m", "k")
	require.False(t, fits)
	require.False(t, routers[1].WouldHold("other", ""), "the total is reached")
	first.Leave()
	first.Leave()
	polltest.Until(t, "the other router may hold one", func() bool { return routers[1].WouldHold("m", "k") })
	require.Zero(t, routers[1].held(holdLimit{}), "a look counts nothing")
	second, fits := routers[1].Hold("m", "k")
	require.True(t, fits)
	second.Join() // as the machine does
	require.Equal(t, 1, routers[1].held(holdLimit{}))
	first.Join() // it returns to its hold, without asking
	polltest.Until(t, "both are written", func() bool { return len(routers[0].written(t, holdLimit{})) == 2 })
}

func TestTheHoldsOfARouterThatDiedEnd(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	living := holdRouters(server, 1, HoldLimits{PerModel: 5, PerKey: 5, Total: 5})[0]
	client, err := shared.New(shared.Options{
		Address: shared.Address{URL: server.URL()}, Registerer: prometheus.NewRegistry(), Prefix: "hivenet_", Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	dying := NewHolds(client, living.limits)
	dying.patience = patient
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		client.Run(ctx)
	}()
	client.AwaitUp(t.Context())
	for range 5 {
		_, fits := dying.Hold("m", "")
		require.True(t, fits)
	}
	began := time.Now()
	polltest.Until(t, "more than a life is over", func() bool { return time.Since(began) > shared.Life+shared.Beat })
	require.False(t, living.WouldHold("m", ""), "a router that lives writes its counts again")
	kill() // the holds stay counted: nothing takes them back
	begin := time.Now()
	<-ended
	polltest.Until(t, "the counts of the dead router end", func() bool { return living.WouldHold("m", "") })
	require.LessOrEqual(t, time.Since(begin), shared.Life+time.Second)
	require.Empty(t, living.written(t, holdLimit{}), "and are removed")
}

// countOf returns the count in a field.
func countOf(field string) (n int) {
	_, _ = fmt.Sscan(field, &n)
	return n
}

// A late answer counts nothing for ever.
func TestAnswersThatNobodyWaitsForLeaveNoCount(t *testing.T) {
	t.Parallel()
	routers := holdRouters(valkeytest.Start(t), 1, HoldLimits{PerModel: 50, PerKey: 50, Total: 50})
	h := routers[0]
	h.patience = time.Nanosecond
	var holds []holdstate.SiteHold
	for range 200 {
		one, fits := h.Hold("m", "k")
		if fits && rand.IntN(2) == 0 {
			one.Join()
			holds = append(holds, one)
		} else {
			one.Leave()
		}
	}
	polltest.Until(t, "what is held is written", func() bool {
		return countOf(h.written(t, holdLimit{model: "m"})[h.client.ID()]) == len(holds)
	})
	require.Equal(t, len(holds), h.held(holdLimit{model: "m", key: "k"}))
	for _, one := range holds {
		one.Leave()
	}
	polltest.Until(t, "nothing is counted", func() bool { return none(t, routers) })
}

// More limits than one call writes.
func TestManyLimitsAreWrittenInSeveralCalls(t *testing.T) {
	t.Parallel()
	routers := holdRouters(valkeytest.Start(t), 1, HoldLimits{PerModel: 5000, PerKey: 5000, Total: 5000})
	h := routers[0]
	var all []holdstate.SiteHold
	for i := range 2 * writesPerCall {
		one := newHold(h, "m", fmt.Sprint(i))
		one.Join()
		all = append(all, one)
	}
	last := holdLimit{model: "m", key: fmt.Sprint(2*writesPerCall - 1)}
	polltest.Until(t, "all are written", func() bool {
		h.mu.Lock()
		left := len(h.dirty)
		h.mu.Unlock()
		return left == 0 && len(h.written(t, last)) == 1
	})
	for _, one := range all {
		one.Leave()
	}
	polltest.Until(t, "nothing is counted", func() bool { return none(t, routers) })
	polltest.Until(t, "of no limit", func() bool { return len(h.written(t, last)) == 0 })
}

// While the server is away, holds of ever new keys leave nothing behind.
func TestHoldsWithoutTheServerLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	h := holdRouters(server, 1, HoldLimits{PerModel: 10, PerKey: 10, Total: 10})[0]
	server.Stop()
	polltest.Until(t, "the router is alone", func() bool {
		_ = h.WouldHold("m", "")
		return !h.client.Up()
	})
	for i := range 3 * mostDirty {
		one, fits := h.Hold("m", strconv.Itoa(i))
		require.True(t, fits)
		one.Join()
		one.Leave()
	}
	polltest.Until(t, "few counts are kept", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.dirty) <= mostDirty && len(h.counts) == 0
	})
}
