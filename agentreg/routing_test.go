// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// offline registers an agent without a stream; what is sent to it stays in the
// session's outbox.
func offline(tb require.TestingT, r *Registry, h *pb.Hello) *registration {
	checked, rej := checkHello(h, onUnix, nil)
	require.Nil(tb, rej)
	s := newSession()
	require.True(tb, r.addSession(s))
	rec, err := r.join(checked, s)
	require.NoError(tb, err)
	return rec
}

func TestTakePicksTheLeastLoadedShare(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: zerolog.Nop()})
	offline(t, r, aHello())
	offline(t, r, aHello(named("b"), func(h *pb.Hello) { h.Slots = 6 }))
	count := map[string]int{}
	for range 8 {
		slot, o := r.Take(llama)
		require.Equal(t, Taken, o)
		count[slot.Agent().ID]++
		if count["a"] == 1 && count["b"] == 3 {
			count["even"]++
		}
	}
	require.Equal(t, map[string]int{"a": 2, "b": 6, "even": 1}, count)
	_, o := r.Take(llama)
	require.Equal(t, Full, o)
	_, o = r.Take(target.Target{Model: "llama", Kind: target.Rerank})
	require.Equal(t, None, o)
}

func TestEqualReplicasTakeTurns(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: zerolog.Nop()})
	for _, id := range []string{"a", "b", "c"} {
		offline(t, r, aHello(named(id)))
	}
	count := map[string]int{}
	for range 9 {
		slot, _ := r.Take(llama)
		count[slot.Agent().ID]++
		slot.Release()
	}
	require.Equal(t, map[string]int{"a": 3, "b": 3, "c": 3}, count)
}

// inRegion is a Filter.
type inRegion string

func (f inRegion) Fits(a *AgentInfo) bool { return a.Region == string(f) }

func TestTakeFromTakesOnlyWhatFits(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: zerolog.Nop()})
	offline(t, r, aHello(func(h *pb.Hello) { h.Region, h.Slots = "eu", 1 }))
	offline(t, r, aHello(named("b"), func(h *pb.Hello) { h.Region, h.Slots = "us", 9 }))
	slot, o := r.TakeFrom(llama, inRegion("eu"))
	require.Equal(t, Taken, o)
	require.Equal(t, "eu", slot.Agent().Region)
	_, o = r.TakeFrom(llama, inRegion("eu"))
	require.Equal(t, Full, o)
	_, o = r.TakeFrom(llama, inRegion("ap"))
	require.Equal(t, None, o)
}

func TestOthersAreTheLeastLoadedFirst(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: zerolog.Nop()})
	for i, id := range []string{"a", "b", "c", "d"} {
		offline(t, r, aHello(named(id), func(h *pb.Hello) { h.Address, h.Slots = "127.0.0.1:800"+strconv.Itoa(i), 2 }))
	}
	offline(t, r, aHello(named("c2"), func(h *pb.Hello) { h.Address, h.Slots = "127.0.0.1:8002", 2 }))
	take := func(id string) *Slot {
		slot, o := r.TakeFrom(llama, only(id))
		require.Equal(t, Taken, o)
		return slot
	}
	a := take("a")
	take("b")
	take("c")
	take("c")
	take("c2")
	require.Equal(t, []string{"127.0.0.1:8003", "127.0.0.1:8001"}, a.Others(llama, nil, 2), "d is idle, and b half full")
	require.Equal(t, []string{"127.0.0.1:8003", "127.0.0.1:8001", "127.0.0.1:8002"}, a.Others(llama, nil, 9), "each address once, without its own")
	require.Equal(t, []string{"127.0.0.1:8001"}, a.Others(llama, only("b"), 2))
	require.Empty(t, a.Others(target.Target{Model: "other"}, nil, 2))
}

func TestAFullCacheIsALoad(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: zerolog.Nop()})
	a := offline(t, r, aHello())
	offline(t, r, aHello(named("b"), func(h *pb.Hello) { h.Slots = 4 }))
	for range 3 {
		_, o := r.TakeFrom(llama, only("b"))
		require.Equal(t, Taken, o)
	}
	use := 0.9
	report := func() { a.onStatus(&pb.Status{State: pb.State_STATE_SERVING, Healthy: true, KvUse: &use}) }
	report()
	slot, _ := r.Take(llama)
	require.Equal(t, "b", slot.Agent().ID, "three of four slots are less than nine tenths of a cache")
	slot.Release()
	use = math.NaN()
	report()
	slot, _ = r.Take(llama)
	require.Equal(t, "a", slot.Agent().ID)
}

// An agent that was started again stands beside the same engine.
func TestRequestsOfAnEarlierInstanceTakeSlotsOfTheEngine(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]bool{"its stream has ended": true, "its stream is still open": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := newRouter(t)
				fewer := 0
				rt.opts.OnFewer = func(*AgentInfo, int, time.Time) { fewer++ }
				a := rt.connect(aHello())
				one, _ := rt.Take(llama)
				two, _ := rt.Take(llama)
				if left {
					a.end()
					synctest.Wait()
				}
				rt.connect(aHello(func(h *pb.Hello) { h.Instance = instance(4) })).end()
				synctest.Wait()
				b := rt.connect(aHello(restarted))
				_, o := rt.Take(llama)
				require.Equal(t, Full, o)
				require.Equal(t, Capacity{Replicas: 1, Slots: 2}, rt.Capacity(llama))
				before := rt.changesOf(llama)
				one.Release()
				require.Greater(t, rt.changesOf(llama), before)
				three, o := rt.Take(llama)
				require.Equal(t, Taken, o)
				_, o = rt.Take(llama)
				require.Equal(t, Full, o)
				// One of them ended, and its record was lost.
				for range 2 {
					b.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.InFlight = new(uint32(1)) })
					time.Sleep(rt.opts.Liveness / 3)
				}
				require.Equal(t, 1, fewer)
				two.Release()
				three.Release()
				require.EqualValues(t, 2, rt.Capacity(llama).Free)

				three, _ = rt.Take(llama)
				rt.connect(aHello(restarted, func(h *pb.Hello) { h.Instance, h.Address = instance(3), "127.0.0.1:8001" }))
				require.EqualValues(t, 2, rt.Capacity(llama).Free, "another engine")
				three.Release()
			})
		})
	}
}

// only is a Filter.
type only string

func (f only) Fits(a *AgentInfo) bool { return a.ID == string(f) }

func TestTakeAndReleaseAllocateOneSlot(t *testing.T) {
	r := New(Options{Log: zerolog.Nop(), OnChange: func(target.Target) {}})
	offline(t, r, aHello())
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		slot, _ := r.Take(llama)
		_ = slot.Agent()
		slot.Release()
	}), 1.0)
	require.Zero(t, testing.AllocsPerRun(100, func() { r.Serving(llama) }))
}

// TestSlotsAddUpUnderRaces takes and gives back slots from many goroutines
// while agents fail, reconnect and leave. No slot may be granted twice, and
// nothing may be left in the end.
func TestSlotsAddUpUnderRaces(t *testing.T) {
	t.Parallel()
	r := New(Options{Log: zerolog.Nop()})
	const agents, slots = 4, 3
	ids := []string{"a", "b", "c", "d"}
	var held [agents]atomic.Int64
	index := map[string]int{"a": 0, "b": 1, "c": 2, "d": 3}
	hello := func(i int) *pb.Hello {
		return aHello(named(ids[i]), func(h *pb.Hello) { h.Slots, h.Instance = slots, instance(i) })
	}
	for i := range agents {
		offline(t, r, hello(i))
	}
	var users, churn sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		users.Go(func() {
			for range 3000 {
				slot, o := r.Take(llama)
				if o != Taken {
					continue
				}
				h := &held[index[slot.Agent().ID]]
				if n := h.Add(1); n > slots {
					t.Errorf("%d slots of %d taken", n, slots)
				}
				if rand.IntN(50) == 0 {
					slot.Failed("test")
				}
				h.Add(-1)
				slot.Release()
				slot.Release()
			}
		})
	}
	churn.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			i := n % agents
			r.mu.Lock()
			rec := r.agents[ids[i]]
			r.mu.Unlock()
			switch n % 3 {
			case 0:
				r.removeSession(rec.session)
				offline(t, r, hello(i))
			case 1:
				offline(t, r, hello(i))
			default:
				rec.onStatus(&pb.Status{State: pb.State_STATE_SERVING, Healthy: true, Handled: 1 << 40})
			}
		}
	})
	users.Wait()
	close(stop)
	churn.Wait()
	for _, a := range r.Agents() {
		require.Zero(t, a.InFlight)
	}
	require.Empty(t, r.departed)
	for _, id := range ids {
		r.removeSession(r.agents[id].session)
	}
	require.Zero(t, r.Serving(llama))
	require.Empty(t, r.models)
	require.Empty(t, r.routing.pools)
}

func BenchmarkTakeRelease(b *testing.B) {
	r := New(Options{Log: zerolog.Nop(), OnChange: func(target.Target) {}})
	for _, id := range []string{"a", "b", "c", "d"} {
		offline(b, r, aHello(named(id), func(h *pb.Hello) { h.Slots = 64 }))
	}
	b.ReportAllocs()
	for b.Loop() {
		slot, _ := r.Take(llama)
		slot.Release()
	}
}
