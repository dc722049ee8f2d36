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
)

func TestFailedWakeGivesTheRoomToTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1))
		g.want("a", "b")
		require.Equal(t, told{"a": {"wake a"}}, g.told())
		g.agents["a"].wakeFailed("no memory")
		require.Equal(t, []string{"a: no memory"}, g.failures())
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
	})
}

func TestAgentThatCannotSleepTakesItsRoomForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, fixed), member("b", 1, 1))
		g.want("b")
		require.Equal(t, []string{"b: its agents have no room"}, g.failures())
		require.Equal(t, "the room of group gpu0 is taken by agents that cannot be stopped (no --exec): a", g.WakeDetail("b"))
		g.wait(time.Minute)
		require.Empty(t, g.told())
		require.Len(t, g.failures(), 1)
		g.agents["a"].send(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}})
		require.Equal(t, told{"b": {"wake b"}}, g.told())
	})
}

func TestGroupWaitsForAgentsThatMayBeOnTheirWayBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &onGPU{router: newRouter(t), agents: map[string]*scripted{}}
		g.join(member("b", 1, 1))
		g.want("b")
		require.Empty(t, g.told(), "the router has only just started")
		time.Sleep(DefaultGroupGrace / 2)
		g.join(member("a", 1, 1, up))
		g.wait(minUp)
		require.Equal(t, told{"a": {"sleep"}}, g.told())
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
	})
}

func TestAgentThatSaysByeKeepsItsRoomUntilItsAnswersHaveEnded(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*pb.Hello){"on demand": up, "always up": fixed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newOnGPU(t, member("a", 1, 1, edit), member("b", 1, 1))
				slot, _ := g.Take(chatOf("a"))
				g.agents["a"].send(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}})
				g.want("b")
				require.Empty(t, g.told())
				require.Empty(t, g.failures())
				slot.Release()
				if name == "on demand" {
					require.Empty(t, g.told(), "now its engine is stopped")
					g.wait(protocol.DefaultLiveness)
				}
				require.Equal(t, told{"b": {"wake b"}}, g.told())
			})
		})
	}
}

func TestGroupThatIsTooFullShrinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, up), member("b", 1, 1, up))
		g.wait(minUp)
		require.Equal(t, told{"a": {"sleep"}}, g.told())
	})
}

func TestAgentThatEndsItsEngineAsItConnectsKeepsItsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("b", 1, 1))
		a := g.connect(member("a", 1, 1))
		g.want("b")
		require.Empty(t, g.told())
		a.status(pb.State_STATE_SERVING, unhealthy)
		require.Empty(t, g.told())
		a.status(pb.State_STATE_ASLEEP)
		require.Equal(t, told{"b": {"wake b"}}, g.told())
	})
}

func TestAgentThatHasJustConnectedWaitsLikeOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, up))
		g.wait(minUp)
		b := g.connect(member("b", 1, 1))
		g.want("b")
		require.Equal(t, told{"a": {"sleep"}}, g.told())
		require.Equal(t, []string{"welcome"}, b.took(), "a's engine has not ended")
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Equal(t, []string{"wake b"}, b.took())
	})
}

func TestModelThatIsWantedWhileItGoesToSleepKeepsItsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, idle(time.Second)), member("b", 1, 1))
		g.want("a")
		g.serve("a")
		g.wait(minUp)
		require.Equal(t, told{"a": {"wake a", "sleep"}}, g.told())
		g.want("a", "b")
		require.Equal(t, told{"a": {"wake a"}}, g.told())
	})
}

func TestModelOfTwoGroupsIsWokenWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	other := func(h *pb.Hello) { h.Group.Name = "gpu1" }
	synctest.Test(t, func(t *testing.T) {
		both := func(h *pb.Hello) { h.Models = []string{"c"} }
		g := newOnGPU(t, member("a", 1, 1), member("b", 1, 1, other), member("c0", 1, 1, both), member("c1", 1, 1, both, other))
		g.want("a", "b")
		g.serve("a")
		g.serve("b")
		slot, _ := g.Take(chatOf("a"))
		g.wait(minUp)
		g.told()
		g.want("c")
		require.Equal(t, told{"b": {"sleep"}}, g.told(), "the other group would have to close a")
		slot.Release()
	})
}

func TestAgentsOfAGroupMustSayTheSameRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(member("a", 1, 1))
		b := rt.connect(member("b", 2, 1, func(h *pb.Hello) { h.Instance = instance(3) }))
		require.Equal(t, []string{"reject invalid_hello"}, b.took())
		require.ErrorContains(t, b.err, `group.room: is 2, but 1 for agent "a" of group "gpu0"`)
		again := rt.connect(member("a", 2, 1, restarted))
		require.Equal(t, []string{"welcome"}, again.took(), "nobody else is there")
		require.True(t, a.ended())
		require.Equal(t, []string{"welcome"}, rt.connect(member("b", 2, 1, func(h *pb.Hello) { h.Instance = instance(4) })).took())
	})
}

func TestIdleAgentIsNotPutToSleepBeforeItsMinimumUpTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(idle(time.Second), func(h *pb.Hello) { h.MinUpTime = durationpb.New(10 * time.Second) }))
		a.took()
		time.Sleep(5 * time.Second)
		a.status(pb.State_STATE_SERVING, unhealthy)
		a.status(pb.State_STATE_SERVING)
		again := rt.connect(aHello(idle(time.Second), func(h *pb.Hello) { h.MinUpTime = durationpb.New(10 * time.Second) }))
		again.took()
		time.Sleep(5*time.Second - time.Millisecond)
		synctest.Wait()
		require.Empty(t, again.took())
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"sleep"}, again.took(), "it counts from the begin of serving, not from a blip")
	})
}
