// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// usages returns the Usages that were received since the last call of it or of took.
func (a *scripted) usages() (list []*pb.Usage) {
	time.Sleep(usagePause)
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.got {
		if u := m.GetUsage(); u != nil {
			list = append(list, u)
		}
	}
	a.got = nil
	return list
}

// offered sends a Status with a share of the slots, of an agent with two routers.
func (a *scripted) offered(number uint64, share uint32) {
	a.t.Helper()
	a.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.Routers, s.Slots, s.Offer = 2, &share, number })
}

// divides is the Hello of an agent that divides four slots.
func divides(share uint32) func(*pb.Hello) {
	return func(h *pb.Hello) { h.Slots, h.Share, h.Offer = 4, &share, 1 }
}

func requireUsages(t *testing.T, got []*pb.Usage, want ...*pb.Usage) {
	t.Helper()
	require.Empty(t, cmp.Diff(want, got, protocmp.Transform()))
}

func TestARouterSaysWhatItKeepsOfItsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		var waiting atomic.Int64
		rt.opts.SlotWaiters = func(target.Target) int { return int(waiting.Load()) }
		a := rt.connect(aHello(divides(3)))
		requireUsages(t, a.usages(), &pb.Usage{Offer: 1, Kept: 3})
		slots := make([]*Slot, 3)
		for i := range slots {
			slots[i], _ = rt.Take(llama)
		}
		_, o := rt.Take(llama)
		require.Equal(t, Full, o)
		slots[0].Release()
		require.Empty(t, a.usages(), "the agent need not know of each request")

		a.offered(2, 1)
		requireUsages(t, a.usages(), &pb.Usage{Offer: 2, Kept: 2, Taken: 2, Released: 1})
		slots[1].Release()
		requireUsages(t, a.usages(), &pb.Usage{Offer: 2, Kept: 1, Taken: 1, Released: 2})
		_, o = rt.Take(llama)
		require.Equal(t, Full, o)
		slots[2].Release()
		require.Empty(t, a.usages(), "that one is of the share")

		waiting.Store(6)
		for range 3 {
			rt.SlotWaitersChanged(llama)
		}
		requireUsages(t, a.usages(), &pb.Usage{Offer: 2, Kept: 1, Waiting: 4, Released: 3})
		waiting.Store(7)
		rt.SlotWaitersChanged(llama)
		require.Empty(t, a.usages(), "it is more than all slots in any case")
		a.offered(3, 1)
		requireUsages(t, a.usages(), &pb.Usage{Offer: 3, Kept: 1, Waiting: 4, Released: 3})

		a.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.Offer = 4 })
		requireUsages(t, a.usages(), &pb.Usage{Offer: 4, Kept: 4, Waiting: 4, Released: 3})
		waiting.Store(0)
		rt.SlotWaitersChanged(llama)
		require.Empty(t, a.usages(), "the agent has no other router")
	})
}

func TestAgentsThatDivideNothingAreSentNoUsage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		a.status(pb.State_STATE_SERVING)
		rt.SlotWaitersChanged(llama)
		require.Empty(t, a.usages())
	})
}

// A request that may not wait for a slot would never make the agent give this router one.
func TestARefusedRequestCountsAsOneThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(divides(0)))
		requireUsages(t, a.usages(), &pb.Usage{Offer: 1})
		rt.Refused("another")
		require.Empty(t, a.usages())
		rt.Refused("llama")
		requireUsages(t, a.usages(), &pb.Usage{Offer: 1, Waiting: 1})
		time.Sleep(rt.opts.Liveness / 3)
		a.offered(2, 0)
		requireUsages(t, a.usages(), &pb.Usage{Offer: 2})
	})
}

// An agent that was started again does not know the requests that its engine still has.
func TestSlotsOfAnEarlierInstanceAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.connect(aHello(divides(4)))
		one, _ := rt.Take(llama)
		two, _ := rt.Take(llama)
		b := rt.connect(aHello(divides(1), restarted))
		requireUsages(t, b.usages(), &pb.Usage{Offer: 1, Kept: 2, Taken: 2})
		one.Release()
		requireUsages(t, b.usages(), &pb.Usage{Offer: 1, Kept: 1, Taken: 1, Released: 1})
		two.Release()
		b.offered(2, 2)
		requireUsages(t, b.usages(), &pb.Usage{Offer: 2, Kept: 2, Released: 2})
	})
}

func TestADrainingRouterKeepsOnlyWhatIsTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(divides(3)))
		slot, _ := rt.Take(llama)
		a.took()
		rt.Drain()
		requireUsages(t, a.usages(), &pb.Usage{Offer: 1, Kept: 1, Taken: 1})
		require.True(t, a.ended())
		slot.Release()
	})
}

func TestTheWordOfAGateKeepsItsPartsApart(t *testing.T) {
	t.Parallel()
	g := &gate{slots: 65536}
	g.close()
	require.True(t, g.setShare(new(uint32(65536))))
	require.False(t, g.setShare(new(uint32(65535))))
	g.state.Add(1)
	require.False(t, g.closeIdle())
	g.state.And(^closedBit)
	require.False(t, g.closeIdle(), "a slot is taken")
	w := g.release()
	require.EqualValues(t, 1, w.released())
	g.state.Add(oneReleased * (releases - 2))
	g.state.Add(2)
	require.Equal(t, releases-1, g.load().released())
	g.release()
	w = g.release()
	require.EqualValues(t, 1, w.released(), "modulo their number")
	require.Equal(t, []int64{0, 65535}, []int64{w.taken(), w.share()})
	require.False(t, w.closed())
	require.True(t, g.closeIdle())
	require.EqualValues(t, 65535, g.load().share())
}
