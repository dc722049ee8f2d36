// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

func (rt *router) want(wanted bool) {
	rt.SetWanted("llama", wanted)
	synctest.Wait()
}

func TestWantedModelWakesAnAsleepAgentOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a, b := rt.connect(aHello(asleep)), rt.connect(aHello(asleep, named("b")))
		a.took()
		b.took()
		require.Equal(t, []ModelState{{Model: "llama", Kinds: []target.Kind{target.Chat}, Asleep: 2}}, rt.Models())
		rt.want(true)
		rt.want(true)
		require.Equal(t, []string{"wake llama"}, a.took())
		require.True(t, rt.Waking("llama"))
		a.status(pb.State_STATE_WAKING)
		a.status(pb.State_STATE_SERVING)
		require.Equal(t, 1, rt.Serving(llama))
		require.False(t, rt.Waking("llama"))
		rt.want(false)
		rt.want(true)
		require.Empty(t, a.took())
		require.Empty(t, b.took())
		require.Equal(t, []ModelState{{Model: "llama", Kinds: []target.Kind{target.Chat}, Serving: 1, Asleep: 1}}, rt.Models())
	})
}

func TestAgentThatJoinsLaterIsWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.want(true)
		require.Empty(t, rt.Models(), "nobody offers it")
		a := rt.connect(aHello(asleep))
		require.Equal(t, []string{"welcome", "wake llama"}, a.took())
	})
}

func TestAgentThatCannotWakeIsNotAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.want(true)
		a := rt.connect(aHello(asleep, func(h *pb.Hello) { h.CanWake = false }))
		require.Equal(t, []string{"welcome"}, a.took())
		require.Empty(t, rt.failures())
	})
}

func TestWakeIsSentAgainAfterTheAgentReconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(asleep))
		rt.want(true)
		a.end()
		synctest.Wait()
		require.False(t, rt.Waking("llama"))
		again := rt.connect(aHello(asleep))
		require.Equal(t, []string{"welcome", "wake llama"}, again.took())
	})
}

func TestAgentThatReconnectsWhileWakingIsNotWokenAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.connect(aHello(asleep))
		rt.want(true)
		again := rt.connect(aHello(asleep, func(h *pb.Hello) { h.State = pb.State_STATE_WAKING }))
		require.Equal(t, []string{"welcome"}, again.took())
		require.True(t, rt.Waking("llama"))
		again.status(pb.State_STATE_ASLEEP)
		require.Equal(t, []string{"wake llama"}, again.took(), "it gave up, and the model is still wanted")
	})
}

func TestAnotherAgentIsWokenWhenTheWakingOneLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a, b := rt.connect(aHello(asleep)), rt.connect(aHello(asleep, named("b")))
		rt.want(true)
		require.Equal(t, []string{"welcome"}, b.took())
		a.end()
		synctest.Wait()
		require.Equal(t, []string{"wake llama"}, b.took())
	})
}

func TestFailedWakeGoesToTheNextAgentAndIsReportedOnceAllFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a, b := rt.connect(aHello(asleep)), rt.connect(aHello(asleep, named("b")))
		a.took()
		b.took()
		rt.want(true)
		a.wakeFailed("exit status 1")
		require.Equal(t, []string{"wake llama"}, b.took())
		require.Empty(t, rt.failures())
		b.send(&pb.AgentMessage{Message: &pb.AgentMessage_WakeResult{WakeResult: &pb.WakeResult{
			Model: "llama", Reason: "no\nmemory", Detail: "loading\nHF_TOKEN=abcdefgh",
		}}})
		b.status(pb.State_STATE_ASLEEP)
		require.Equal(t, []string{"llama: no memory"}, rt.failures())
		require.False(t, rt.Waking("llama"))
		require.Equal(t, "no memory: loading HF_TOKEN=***", rt.Agents()[1].LastWakeError)
		require.Equal(t, "loading HF_TOKEN=***", rt.WakeDetail("llama"))

		time.Sleep(wakeCooldown - time.Millisecond)
		a.status(pb.State_STATE_ASLEEP)
		b.status(pb.State_STATE_ASLEEP)
		require.Equal(t, []string{"wake llama"}, a.took(), "only the first one")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"wake llama"}, append(a.took(), b.took()...), "one is enough")
	})
}

func TestFailedWakeIsTriedAgainAfterTheCooldownOrByANewWish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(asleep))
		rt.want(true)
		a.wakeFailed("one")
		a.took()
		time.Sleep(wakeCooldown)
		synctest.Wait()
		require.Equal(t, []string{"wake llama"}, a.took())
		a.status(pb.State_STATE_ASLEEP)
		require.Empty(t, a.took())
		rt.want(false)
		rt.want(true)
		require.Equal(t, []string{"wake llama"}, a.took())
		require.Equal(t, []string{"llama: one", "llama: the engine went back to sleep"}, rt.failures())
	})
}

func TestFailureMayEndTheWishFromTheCallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.onFail = func(model string) { rt.SetWanted(model, false) }
		a := rt.connect(aHello(asleep))
		rt.want(true)
		a.wakeFailed("")
		require.Equal(t, []string{"llama: the agent gave no reason"}, rt.failures())
		a.took()
		time.Sleep(wakeCooldown)
		synctest.Wait()
		require.Empty(t, a.took())
	})
}

func TestAgentThatTakesInNothingIsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a, b := rt.connect(aHello(asleep)), rt.connect(aHello(asleep, named("b")))
		rt.want(true)
		b.took()
		for range 4 {
			time.Sleep(protocol.DefaultLiveness / 4)
			synctest.Wait()
			if !a.ended() {
				a.status(pb.State_STATE_ASLEEP, stale)
			}
			b.status(pb.State_STATE_ASLEEP)
		}
		require.True(t, a.ended())
		require.Equal(t, []string{"wake llama"}, b.took())
	})
}

func TestIdleAgentIsPutToSleepOutOfRoutingFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(idle(8 * time.Second)))
		a.took()
		time.Sleep(5 * time.Second)
		slot, _ := rt.Take(llama)
		for range 3 {
			time.Sleep(5 * time.Second)
			a.status(pb.State_STATE_SERVING)
		}
		require.Empty(t, a.took(), "a request is in flight")
		slot.Release()
		time.Sleep(8*time.Second - time.Millisecond)
		require.Empty(t, a.took())
		require.Equal(t, 1, rt.Serving(llama))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"sleep"}, a.took())
		_, o := rt.Take(llama)
		require.Equal(t, None, o)

		a.status(pb.State_STATE_SERVING)
		require.Zero(t, rt.Serving(llama), "another router keeps it up; this one said Sleep")
		require.Equal(t, 1, rt.Models()[0].Asleep)
		a.status(pb.State_STATE_ASLEEP)
		rt.want(true)
		require.Equal(t, []string{"wake llama"}, a.took())
	})
}

func TestWantedModelIsNotPutToSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.want(true)
		a := rt.connect(aHello(idle(time.Second)))
		a.took()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Empty(t, a.took())
		rt.want(false)
		require.Equal(t, []string{"sleep"}, a.took())
	})
}

func TestWakeAfterSleepBelievesOnlyWhatWasSaidAfterIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(idle(time.Second)))
		time.Sleep(time.Second)
		synctest.Wait()
		rt.want(true)
		require.Equal(t, []string{"welcome", "sleep", "wake llama"}, a.took())
		require.Zero(t, rt.Serving(llama))
		a.status(pb.State_STATE_SERVING, stale)
		require.Zero(t, rt.Serving(llama))
		a.status(pb.State_STATE_ASLEEP, stale)
		require.True(t, rt.Waking("llama"))
		a.status(pb.State_STATE_SERVING)
		require.Equal(t, 1, rt.Serving(llama))
	})
}

func TestEngineThatEndsWhileServingIsWokenAgainWhenWanted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(canWake))
		a.took()
		a.status(pb.State_STATE_ASLEEP)
		require.Zero(t, rt.Serving(llama))
		require.Empty(t, a.took())
		rt.want(true)
		require.Equal(t, []string{"wake llama"}, a.took())
	})
}

func TestWakeCoversTheKindsThatNothingServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.connect(aHello(func(h *pb.Hello) { h.Kinds = []string{"embedding"} }))
		chat := rt.connect(aHello(asleep, named("b")))
		rt.want(true)
		require.Equal(t, []string{"welcome", "wake llama"}, chat.took())
		require.Equal(t, []target.Kind{target.Chat, target.Embedding}, rt.Models()[0].Kinds)
	})
}

func TestAgentWithTwoModelsIsWokenForEither(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(asleep, func(h *pb.Hello) { h.Models = []string{"llama", "qwen"} }))
		rt.SetWanted("qwen", true)
		rt.SetWanted("llama", true)
		synctest.Wait()
		require.Equal(t, []string{"welcome", "wake qwen"}, a.took())
		a.status(pb.State_STATE_SERVING)
		require.Equal(t, 1, rt.Serving(llama))
		require.Equal(t, 1, rt.Serving(target.Target{Model: "qwen"}))
	})
}

func TestWordsOfAFailedWakeAreFitForALineAndAnError(t *testing.T) {
	t.Parallel()
	require.Equal(t, "red  left right", cleanText("\x00red\r\nleft\u202eright\ufffd"))
	require.Equal(t, strings.Repeat("é", maxReason/2)+"…", cleanText(strings.Repeat("é", maxReason)))
}
