// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

const minUp = 30 * time.Second

// member is a Hello of an agent that serves a model of its own name.
func member(id string, room, cost uint64, edits ...func(*pb.Hello)) *pb.Hello {
	return aHello(append([]func(*pb.Hello){asleep, named(id), func(h *pb.Hello) {
		h.Models = []string{id}
		h.MinUpTime = durationpb.New(minUp)
		h.Group = &pb.Group{Name: "gpu0", Room: room, Cost: cost}
	}}, edits...)...)
}

func fixed(h *pb.Hello) { h.State, h.CanWake, h.MinUpTime = pb.State_STATE_SERVING, false, nil }
func up(h *pb.Hello)    { h.State = pb.State_STATE_SERVING }

// onGPU is a router whose start is over, with agents that share a GPU.
type onGPU struct {
	*router
	agents map[string]*scripted
}

func newOnGPU(t *testing.T, hellos ...*pb.Hello) *onGPU {
	t.Helper()
	g := &onGPU{router: newRouter(t), agents: map[string]*scripted{}}
	time.Sleep(DefaultGroupGrace)
	for _, h := range hellos {
		g.join(h)
	}
	return g
}

func (g *onGPU) join(h *pb.Hello) {
	a := g.connect(h)
	require.Equal(g.t, []string{"welcome"}, a.took())
	a.status(h.GetState())
	g.agents[h.GetAgentId()] = a
}

func (g *onGPU) want(names ...string) {
	for _, name := range names {
		g.SetWanted(name, true)
		synctest.Wait()
	}
}

// told returns what agents were sent since the last call, by id.
func (g *onGPU) told() map[string][]string {
	synctest.Wait()
	told := map[string][]string{}
	for id, a := range g.agents {
		if got := a.took(); len(got) > 0 {
			told[id] = got
		}
	}
	return told
}

// serve brings up an agent that was sent a Wake, and takes the need back that
// its waiters had.
func (g *onGPU) serve(id string) {
	g.agents[id].status(pb.State_STATE_WAKING)
	g.agents[id].status(pb.State_STATE_SERVING)
	g.SetWanted(id, false)
	synctest.Wait()
}

func (g *onGPU) wait(d time.Duration) {
	for ; d > 0; d -= time.Second {
		time.Sleep(min(d, time.Second))
		synctest.Wait()
		for _, a := range g.agents {
			if !a.ended() {
				a.status(a.lastState)
			}
		}
	}
}

func chatOf(name string) target.Target { return target.Target{Model: name, Kind: target.Chat} }

type told = map[string][]string

func TestWakingAModelPutsAnIdleOneOfItsGroupToSleepFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1))
		g.want("a")
		require.Equal(t, told{"a": {"wake a"}}, g.told())
		g.serve("a")
		g.wait(minUp)
		g.want("b")
		require.Equal(t, told{"a": {"sleep"}}, g.told())
		require.Zero(t, g.Serving(chatOf("a")))
		g.agents["a"].status(pb.State_STATE_SERVING)
		require.Empty(t, g.told(), "its engine has not ended")
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
		g.serve("b")

		g.want("a")
		require.Empty(t, g.told(), "b has only just come up")
		g.wait(minUp - time.Second)
		require.Empty(t, g.told())
		g.wait(time.Second)
		require.Equal(t, told{"b": {"sleep"}}, g.told())
		g.agents["b"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"a": {"wake a"}}, g.told())
	})
}

func TestBusyModelIsClosedSoThatTheNextOneGetsItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1), member("c", 1, 1))
		g.want("a")
		g.serve("a")
		one, _ := g.Take(chatOf("a"))
		two, _ := g.Take(chatOf("a"))
		g.told()
		g.want("b")
		g.wait(minUp - time.Second)
		require.Equal(t, 1, g.Serving(chatOf("a")))
		g.wait(time.Second)
		require.Zero(t, g.Serving(chatOf("a")), "closed for new requests")
		require.Empty(t, g.told(), "those in flight finish")
		g.want("a", "c") // a's new requests are held
		one.Release()
		require.Empty(t, g.told())
		two.Release()
		require.Equal(t, told{"a": {"sleep"}}, g.told())
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
		g.serve("b")
		g.wait(minUp)
		require.Equal(t, told{"b": {"sleep"}}, g.told())
		g.want("b")
		g.agents["b"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"a": {"wake a"}}, g.told(), "it was wanted before c, and b after both")
	})
}

func TestModelThatIsAlwaysWantedTakesTurnsLikeOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1), member("c", 1, 1))
		g.want("a")
		g.agents["a"].status(pb.State_STATE_SERVING)
		g.want("b", "c")
		for _, next := range []string{"b", "c", "a", "b"} {
			g.wait(minUp)
			for id, a := range g.agents {
				if a.lastState == pb.State_STATE_SERVING {
					require.Contains(t, a.took(), "sleep", id)
					a.status(pb.State_STATE_ASLEEP)
				}
			}
			require.Equal(t, told{next: {"wake " + next}}, g.told())
			g.agents[next].status(pb.State_STATE_SERVING)
		}
	})
}

func TestClosedModelOpensAgainWhenNobodyNeedsItsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1))
		g.want("a")
		g.serve("a")
		slot, _ := g.Take(chatOf("a"))
		g.wait(minUp)
		g.told()
		g.want("b")
		require.Zero(t, g.Serving(chatOf("a")))
		g.SetWanted("b", false)
		require.Equal(t, 1, g.Serving(chatOf("a")))
		slot.Release()
		require.Empty(t, g.told())
	})
}

func TestLongestIdleModelMakesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 3, 1), member("b", 3, 1), member("c", 3, 1), member("d", 3, 1))
		g.want("a", "b", "c")
		for _, id := range []string{"a", "b", "c"} {
			g.serve(id)
		}
		busy, _ := g.Take(chatOf("a"))
		for _, id := range []string{"c", "b"} {
			g.wait(minUp)
			slot, _ := g.Take(chatOf(id))
			slot.Release()
		}
		g.told()
		g.want("d")
		require.Equal(t, told{"c": {"sleep"}}, g.told())
		require.Equal(t, 1, g.Serving(chatOf("a")))
		busy.Release()
	})
}

func TestGroupByMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 24, 4), member("b", 24, 10), member("c", 24, 14), member("d", 24, 4), member("e", 24, 6))
		g.want("a", "b")
		require.Equal(t, told{"a": {"wake a"}, "b": {"wake b"}}, g.told())
		g.serve("a")
		g.serve("b")
		g.want("c", "e")
		require.Empty(t, g.told(), "e fits, and must not overtake c")
		g.SetWanted("e", false)
		g.wait(minUp)
		require.Equal(t, told{"a": {"sleep"}}, g.told(), "b need not go")
		g.want("d")
		require.Equal(t, told{"b": {"sleep"}}, g.told(), "now it must")
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"c": {"wake c"}}, g.told())
		g.agents["b"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"d": {"wake d"}}, g.told())
	})
}

func TestModelThatNobodyWaitsForLosesItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1), member("c", 1, 1))
		g.want("a", "b", "c")
		g.serve("a")
		g.SetWanted("b", false)
		g.wait(minUp)
		g.told()
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"c": {"wake c"}}, g.told())
	})
}

func TestModelNobodyWaitsForGivesUpItsWake(t *testing.T) {
	t.Parallel()
	for _, said := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1))
			g.want("a", "b")
			if said {
				g.agents["a"].status(pb.State_STATE_WAKING)
			}
			require.Equal(t, told{"a": {"wake a"}}, g.told())
			g.SetWanted("a", false)
			require.Equal(t, told{"a": {"sleep"}}, g.told())
			require.False(t, g.Waking("a"))
			g.agents["a"].status(pb.State_STATE_WAKING, stale)
			g.agents["a"].status(pb.State_STATE_WAKING)
			require.Empty(t, g.told(), "its engine has not ended")
			g.agents["a"].status(pb.State_STATE_ASLEEP)
			require.Equal(t, told{"b": {"wake b"}}, g.told())
		})
	}
}

func TestAgentThatIsGoneKeepsItsRoomUntilItsEngineMustHaveEnded(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]pb.State{"serving": pb.State_STATE_SERVING, "waking": pb.State_STATE_WAKING} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1))
				g.want("a", "b")
				g.agents["a"].status(state)
				g.told()
				g.agents["a"].end()
				g.wait(protocol.DefaultLiveness - time.Millisecond)
				require.Empty(t, g.told(), "the engine of a may still run")
				g.wait(time.Millisecond)
				require.Equal(t, told{"b": {"wake b"}}, g.told())
			})
		})
	}
}

func TestAgentThatComesBackFindsItsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, up), member("b", 1, 1))
		g.agents["a"].end()
		g.want("b")
		require.Empty(t, g.told())
		g.join(member("a", 1, 1, up))
		g.wait(minUp)
		require.Equal(t, told{"a": {"sleep"}}, g.told())
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
		require.Len(t, g.groups["gpu0"].members, 2)
	})
}

func TestEngineOfAnAgentThatIsBackMayOutliveItsRestart(t *testing.T) {
	t.Parallel()
	const superseded = -1
	for name, tc := range map[string]struct {
		state pb.State
		bye   bool
		back  time.Duration // after its end
		free  time.Duration // after that
	}{
		"ended in order":               {pb.State_STATE_SERVING, true, 0, 0},
		"killed":                       {pb.State_STATE_SERVING, false, 0, orphanTime},
		"killed while it starts":       {pb.State_STATE_WAKING, false, 0, orphanTime},
		"back late":                    {pb.State_STATE_WAKING, false, 5 * time.Second, orphanTime - 5*time.Second},
		"back after its engine's end":  {pb.State_STATE_WAKING, false, orphanTime, 0},
		"another one has its identity": {pb.State_STATE_SERVING, false, superseded, protocol.DefaultLiveness},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newOnGPU(t, member("a", 1, 1, func(h *pb.Hello) { h.State = tc.state }), member("b", 1, 1))
				switch {
				case tc.bye:
					g.agents["a"].send(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}})
				case tc.back != superseded:
					g.agents["a"].end()
					synctest.Wait()
				}
				g.wait(max(tc.back, 0))
				g.join(member("a", 1, 1, restarted))
				g.want("b")
				if tc.free > 0 {
					g.wait(tc.free - time.Millisecond)
					require.Empty(t, g.told())
					g.wait(time.Millisecond)
				}
				require.Equal(t, told{"b": {"wake b"}}, g.told())
			})
		})
	}
}

func TestAgentThatSleptFreesNothingWhenItIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1))
		g.agents["a"].end()
		g.want("b")
		require.Equal(t, told{"b": {"wake b"}}, g.told())
	})
}
