// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

func (a *scripted) bye() {
	a.t.Helper()
	a.send(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}})
}

func TestByeKeepsTheStreamUntilNothingIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(canWake))
		one, _ := rt.Take(llama)
		two, _ := rt.Take(llama)
		before := rt.changesOf(llama)
		a.bye()
		require.Greater(t, rt.changesOf(llama), before)
		require.Zero(t, rt.Serving(llama))
		_, o := rt.Take(llama)
		require.Equal(t, None, o)
		require.False(t, a.ended())
		v := rt.Agents()[0]
		require.Equal(t, "leaving", v.State)
		require.EqualValues(t, 2, v.InFlight)
		require.Empty(t, rt.Models(), "nobody can count on it")

		// Neither a healthy Status, nor an end of its engine, nor a need brings it back.
		a.took()
		rt.SetWanted("llama", true)
		a.status(pb.State_STATE_SERVING)
		require.Zero(t, rt.Serving(llama))
		a.status(pb.State_STATE_ASLEEP)
		two.Failed("reset")
		a.bye()
		synctest.Wait()
		require.NotContains(t, a.took(), "wake llama")
		require.Empty(t, rt.failures())

		one.Release()
		synctest.Wait()
		require.False(t, a.ended())
		begin := time.Now()
		two.Release()
		synctest.Wait()
		require.True(t, a.ended())
		require.Zero(t, time.Since(begin))
		require.Empty(t, rt.Agents())
		require.Empty(t, rt.departed)
		rt.SetWanted("llama", false)
		require.Empty(t, rt.models)
	})
}

// An agent that leaves routing because it was asked to is not lost.
func TestAReplicaThatLeavesUnaskedIsLost(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		leaves func(rt *router, a *scripted)
		lost   int
	}{
		"its stream ends": {func(_ *router, a *scripted) { a.end() }, 1},
		"it is silent":    {func(_ *router, _ *scripted) { time.Sleep(protocol.DefaultLiveness) }, 1},
		"it connects again": {func(rt *router, _ *scripted) {
			rt.connect(aHello(canWake, idle(time.Minute)))
		}, 1},
		"another one has its id": {func(rt *router, _ *scripted) {
			rt.connect(aHello(canWake, idle(time.Minute), restarted))
		}, 1},
		"its engine does not answer": {func(_ *router, a *scripted) { a.status(pb.State_STATE_SERVING, unhealthy) }, 1},
		"its engine ended":           {func(_ *router, a *scripted) { a.status(pb.State_STATE_ASLEEP) }, 1},
		"it says Bye":                {func(_ *router, a *scripted) { a.bye() }, 0},
		"it is idle": {func(rt *router, a *scripted) {
			for range 20 {
				time.Sleep(5 * time.Second)
				a.status(pb.State_STATE_SERVING)
			}
			require.Zero(a.t, rt.Serving(llama))
			a.status(pb.State_STATE_ASLEEP)
			a.end()
		}, 0},
		"the router ends": {func(rt *router, _ *scripted) { rt.Drain() }, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := newRouter(t)
				a := rt.connect(aHello(canWake, idle(time.Minute)))
				require.Equal(t, 1, rt.Serving(llama))
				tt.leaves(rt, a)
				synctest.Wait()
				require.Equal(t, tt.lost, rt.losses())
			})
		})
	}
}

// A backend that is not checked any more has left because nobody needs it.
func TestABackendThatIsNotCheckedIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		a.status(pb.State_STATE_ASLEEP)
		require.Zero(t, rt.Serving(llama))
		require.Zero(t, rt.losses())
		a.status(pb.State_STATE_SERVING)
		a.status(pb.State_STATE_SERVING, unhealthy)
		require.Equal(t, 1, rt.losses())
	})
}

func TestLeavingAgentMayEndItsStreamBeforeItsRequests(t *testing.T) {
	t.Parallel()
	ends := map[string]func(rt *router, a *scripted){
		"half close": func(_ *router, a *scripted) {
			require.NoError(a.t, a.stream.CloseSend())
			synctest.Wait()
		},
		"silence": func(rt *router, a *scripted) {
			time.Sleep(protocol.DefaultLiveness - time.Millisecond)
			synctest.Wait()
			require.Len(a.t, rt.Agents(), 1)
			time.Sleep(time.Millisecond)
			synctest.Wait()
		},
		"drain": func(rt *router, _ *scripted) {
			rt.Drain()
			synctest.Wait()
		},
		"a newer instance": func(rt *router, _ *scripted) {
			rt.connect(aHello(restarted, asleep))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := newRouter(t)
				a := rt.connect(aHello())
				slot, _ := rt.Take(llama)
				a.bye()
				end(rt, a)
				require.True(t, a.ended())
				require.Zero(t, rt.Serving(llama))
				require.Len(t, rt.departed, 1)
				slot.Release()
				require.Empty(t, rt.departed)
			})
		})
	}
}

func TestLeavingAgentIsNotWaitedForWhenAnotherCanWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a, b := rt.connect(aHello()), rt.connect(aHello(named("b"), asleep))
		slot, _ := rt.Take(llama)
		rt.SetWanted("llama", true)
		require.Equal(t, []string{"welcome"}, b.took())
		a.bye()
		require.Equal(t, []string{"wake llama"}, b.took())
		slot.Release()
	})
}
