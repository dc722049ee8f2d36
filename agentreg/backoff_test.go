// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// failing is a group in which a is up and has traffic, and b cannot start.
func failing(t *testing.T) *onGPU {
	t.Helper()
	g := newOnGPU(t, member("a", 1, 1, up), member("b", 1, 1))
	g.wait(minUp)
	return g
}

// tryB makes room for b, whose wake fails. It returns when a is up again.
func (g *onGPU) tryB(retry time.Duration) {
	g.t.Helper()
	require.Equal(g.t, told{"a": {"sleep"}}, g.told())
	g.agents["a"].status(pb.State_STATE_ASLEEP)
	require.Equal(g.t, told{"b": {"wake b"}}, g.told())
	g.want("a")
	g.agents["b"].send(&pb.AgentMessage{Message: &pb.AgentMessage_WakeResult{WakeResult: &pb.WakeResult{
		Model: "b", Reason: "no memory", RetryAfter: durationpb.New(retry),
	}}})
	g.agents["b"].status(pb.State_STATE_ASLEEP)
	require.Equal(g.t, told{"a": {"wake a"}}, g.told(), "the room does not stand empty")
	g.serve("a")
	g.SetWanted("b", false) // those who waited have their failure
}

func TestModelOfAGroupThatCannotStartIsTriedLessAndLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := failing(t)
		g.want("b")
		pause := wakeCooldown
		for try := 1; try <= 7; try++ {
			g.tryB(0)
			require.Len(t, g.failures(), 3*try-2)
			g.want("b") // it is wanted anew
			require.Len(t, g.failures(), 3*try-1, "who asks too soon is told at once")
			g.SetWanted("b", false)
			g.wait(pause - time.Second)
			g.want("b")
			require.Len(t, g.failures(), 3*try, "after %v", pause-time.Second)
			g.SetWanted("b", false)
			g.wait(time.Second)
			require.Empty(t, g.told())
			g.want("b")
			if pause < minUp {
				g.wait(minUp - pause)
			}
			pause = min(2*pause, maxGroupCooldown)
		}
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		g.told()
		g.agents["b"].status(pb.State_STATE_SERVING)
		g.SetWanted("b", false)
		g.wait(stableTime)
		g.want("a")
		g.wait(minUp)
		g.agents["b"].status(pb.State_STATE_ASLEEP)
		g.serve("a")
		g.wait(minUp)
		g.told()
		g.want("b")
		g.tryB(0)
		g.wait(minUp) // more than the first pause
		require.Empty(t, g.told())
		g.want("b")
		require.Equal(t, told{"a": {"sleep"}}, g.told(), "it has served well meanwhile")
	})
}

func TestAgentIsNotWokenBeforeItSaysThatItCanStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := failing(t)
		g.want("b")
		g.tryB(time.Minute)
		g.SetNeed("b", target.Need{Ahead: 1})
		g.wait(time.Minute - time.Second)
		require.Empty(t, g.told())
		g.wait(time.Second)
		require.Equal(t, told{"a": {"sleep"}}, g.told())
	})
}

func TestEngineThatEndsRightAfterEachStartCountsAsFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1))
		g.want("a")
		for range 2 {
			require.Equal(t, told{"a": {"wake a"}}, g.told(), "the first end may be bad luck")
			require.Empty(t, g.failures())
			g.agents["a"].status(pb.State_STATE_SERVING)
			g.wait(time.Second)
			g.agents["a"].status(pb.State_STATE_ASLEEP)
		}
		require.Equal(t, []string{"a: the engine ended soon after its start"}, g.failures())
		g.wait(2*wakeCooldown - time.Second)
		require.Empty(t, g.told())
		g.wait(time.Second)
		require.Equal(t, told{"a": {"wake a"}}, g.told())
	})
}

func TestRouterThatHasJustStartedCountsTheUpTimeOfBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, up, func(h *pb.Hello) { h.ServingFor = durationpb.New(minUp - 5*time.Second) }), member("b", 1, 1))
		g.want("b")
		g.wait(5*time.Second - time.Millisecond)
		require.Empty(t, g.told())
		g.wait(time.Millisecond)
		require.Equal(t, told{"a": {"sleep"}}, g.told())
	})
}
