// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/share"
	"github.com/holdgate/holdgate/internal/target"
)

// traffic has requests for a model that is up for so long, one after the other without
// a pause.
func (g *onGPU) traffic(id string, d time.Duration) {
	g.t.Helper()
	for ; d > 0; d -= time.Second {
		slot, o := g.Take(chatOf(id))
		require.Equal(g.t, Taken, o)
		g.wait(time.Second)
		slot.Release()
	}
}

func TestWishWithoutDemandClosesNobodyInUse(t *testing.T) {
	t.Parallel()
	for name, need := range map[string]func(g *onGPU){
		"ahead of traffic": func(g *onGPU) { g.SetNeed("b", target.Need{Ahead: 1}) },
		"after a client that gave up": func(g *onGPU) {
			slot, _ := g.Take(chatOf("a"))
			g.want("b")
			require.Zero(g.t, g.Serving(chatOf("a")))
			g.SetNeed("b", target.Need{Ahead: 1})
			slot.Release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newOnGPU(t, member("a", 1, 1, up), member("b", 1, 1))
				g.traffic("a", minUp)
				need(g)
				g.traffic("a", 25*time.Second)
				require.Empty(t, g.told())
				g.SetNeed("b", target.Need{})
				g.wait(share.Quiet)
				require.Empty(t, g.told())
			})
		})
	}
}

func TestWishWithoutDemandTakesTheRoomOfAnAgentThatIsIdleForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, up), member("b", 1, 1))
		g.traffic("a", minUp)
		g.SetNeed("b", target.Need{Ahead: 1})
		g.traffic("a", time.Second)
		g.wait(share.Quiet - time.Second)
		require.Empty(t, g.told())
		g.wait(time.Second)
		require.Equal(t, told{"a": {"sleep"}}, g.told())
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
	})
}

func TestWishWithoutDemandIsForOneStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1, idle(time.Second)))
		need := target.Need{Ahead: 1}
		g.SetNeed("b", need)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
		g.agents["b"].status(pb.State_STATE_SERVING)
		g.wait(2 * minUp)
		require.Empty(t, g.told(), "it is kept although it is idle")
		g.want("a")
		require.Equal(t, told{"b": {"sleep"}}, g.told())
		g.agents["b"].status(pb.State_STATE_ASLEEP)
		g.serve("a")
		g.traffic("a", minUp)
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"a": {"wake a"}}, g.told())
		g.wait(2 * minUp)
		require.Empty(t, g.told(), "the room is free, but b had its start")

		need.Ahead = 2
		g.SetNeed("b", need)
		require.Equal(t, told{"b": {"wake b"}}, g.told(), "it is wanted anew")
		g.agents["b"].status(pb.State_STATE_SERVING)
		g.SetNeed("b", target.Need{})
		g.wait(2 * minUp)
		require.Equal(t, told{"b": {"sleep"}}, g.told())
		need = target.Need{Demand: true, Ahead: 2}
		g.agents["b"].status(pb.State_STATE_ASLEEP)
		g.SetNeed("b", need)
		require.Equal(t, told{"b": {"wake b"}}, g.told(), "requests wait")
	})
}

func TestRequestsComeBeforeWishes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, up), member("b", 1, 1), member("c", 1, 1), member("d", 1, 1))
		g.SetNeed("b", target.Need{Ahead: 1})
		g.SetNeed("c", target.Need{Ahead: 2})
		g.want("d")
		for _, next := range []string{"d", "b", "c"} {
			g.wait(minUp + share.Quiet)
			for id, a := range g.agents {
				if a.lastState == pb.State_STATE_SERVING {
					require.Contains(t, a.took(), "sleep", "%s for %s", id, next)
					a.status(pb.State_STATE_ASLEEP)
				}
			}
			require.Equal(t, told{next: {"wake " + next}}, g.told())
			g.agents[next].status(pb.State_STATE_SERVING)
			g.SetNeed(next, target.Need{})
		}
	})
}

func TestWakeOfAClientThatGaveUpGoesOnForAsLongAsItWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1))
		g.want("b")
		g.agents["b"].status(pb.State_STATE_WAKING)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
		g.wait(10 * time.Second)
		g.SetNeed("b", target.Need{Ahead: 1})
		g.want("a")
		g.wait(9 * time.Second)
		g.want("b") // it tries again
		g.wait(time.Second)
		g.SetNeed("b", target.Need{Ahead: 2})
		g.wait(20*time.Second - time.Millisecond)
		require.Empty(t, g.told())
		g.wait(time.Millisecond)
		require.Equal(t, told{"b": {"sleep"}}, g.told())
		g.agents["b"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"a": {"wake a"}}, g.told())
	})
}
