// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

func demandCore() *core {
	return newCore(Config{ID: "a", Models: []string{"llama"}, Exec: []string{"engine"}}, "i", "127.0.0.1:1")
}

func (c *core) join() *session {
	s := &session{changed: make(chan struct{}, 1)}
	c.addSession(s)
	return s
}

// said returns the state and health of the next Status, and how many messages go
// before it.
func (c *core) said(s *session) (state pb.State, healthy bool, before int) {
	list := c.messages(s)
	st := list[len(list)-1].GetStatus()
	return st.GetState(), st.GetHealthy(), len(list) - 1
}

func wakeMessage(seq uint64) *pb.Wake { return &pb.Wake{Model: "llama", Seq: seq} }

// welcome makes a router answer on a stream.
func (c *core) welcome(s *session, router string) {
	c.setRouter(s, &pb.Welcome{RouterId: router, Usage: true}, time.Minute)
}

// Routers that know nothing of each other together send no more than the engine takes.
func TestAnAgentDividesItsSlotsAmongItsRouters(t *testing.T) {
	t.Parallel()
	c := newCore(Config{ID: "a", Models: []string{"llama"}, Slots: 5}, "i", "127.0.0.1:1")
	var offer uint64
	share := func(s *session) uint32 {
		list := c.messages(s)
		offer = list[len(list)-1].GetStatus().GetOffer()
		return list[len(list)-1].GetStatus().GetSlots()
	}
	one := c.join()
	c.welcome(one, "router 1")
	require.EqualValues(t, 5, share(one))
	require.EqualValues(t, 2, offer, "the Hello was the first")

	two := &session{changed: make(chan struct{}, 1)}
	hello := c.addSession(two).GetHello()
	require.EqualValues(t, 5, hello.GetSlots())
	require.Zero(t, hello.GetShare(), "the first router may use all")
	require.EqualValues(t, 1, hello.GetOffer())
	require.EqualValues(t, 5, share(one), "the other one has not answered yet")
	<-one.changed
	c.welcome(two, "router 2")
	<-one.changed
	<-two.changed
	require.EqualValues(t, 3, share(one))
	require.Zero(t, share(two))
	c.onUsage(two, &pb.Usage{Offer: offer, Waiting: 9})
	c.onUsage(one, &pb.Usage{Offer: 4, Kept: 4, Taken: 4})
	<-two.changed
	require.EqualValues(t, 1, share(two), "what the first one has returned")
	require.EqualValues(t, 3, share(one))
	c.onUsage(one, &pb.Usage{Offer: 5, Kept: 3, Taken: 3})
	<-two.changed
	require.EqualValues(t, 2, share(two))

	c.removeSession(one, nil)
	<-two.changed
	require.EqualValues(t, 2, share(two), "Envoy may carry three requests of the first one")
	again := c.join()
	c.welcome(again, "router 1")
	require.Zero(t, share(again), "no request waits there")
	c.onUsage(again, &pb.Usage{Offer: offer, Kept: 3, Taken: 3, Waiting: 1})
	require.EqualValues(t, 2, share(again))
}

func TestSleepBeginsTheStopAndIsTakenInAtOnce(t *testing.T) {
	t.Parallel()
	c := demandCore()
	one, two := c.join(), c.join()
	c.onWake(one, wakeMessage(1))
	c.setPhase(waking, false)
	c.endWake(nil)
	c.onSleep(one, 2)
	require.True(t, c.wanted())
	c.onSleep(two, 1)
	require.False(t, c.wanted())
	state, healthy, before := c.said(one)
	require.Equal(t, pb.State_STATE_SERVING, state, "it has not ended yet")
	require.False(t, healthy)
	require.Equal(t, 1, before, "the result of the wake")
	require.Equal(t, pb.State_STATE_ASLEEP, c.addSession(&session{changed: make(chan struct{}, 1)}).GetHello().GetState())
}

func TestWakeWhileStoppingIsNotLost(t *testing.T) {
	t.Parallel()
	c := demandCore()
	s := c.join()
	c.onWake(s, wakeMessage(1))
	c.endWake(nil)
	c.onSleep(s, 2)
	c.onWake(s, wakeMessage(3))
	require.True(t, c.wanted())
	state, _, _ := c.said(s)
	require.Equal(t, pb.State_STATE_WAKING, state)
	c.setPhase(asleep, false)
	state, _, _ = c.said(s)
	require.Equal(t, pb.State_STATE_WAKING, state)
}

func TestEngineThatIsWantedAgainBeforeItWasStoppedServesOn(t *testing.T) {
	t.Parallel()
	c := demandCore()
	s := c.join()
	c.onWake(s, wakeMessage(1))
	c.endWake(nil)
	require.True(t, c.keepRunning())
	c.onSleep(s, 2)
	c.onWake(s, wakeMessage(3))
	require.True(t, c.keepRunning())
	state, healthy, _ := c.said(s)
	require.Equal(t, pb.State_STATE_SERVING, state)
	require.True(t, healthy)
	c.onSleep(s, 4)
	require.False(t, c.keepRunning())
}

func TestRouterThatIsGoneKeepsTheEngineForAWhile(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		next  func(c *core)
		keeps time.Duration
	}{
		"gone for good":          {func(*core) {}, lostRouterTime},
		"a new one in its place": {func(c *core) { s := c.join(); c.welcome(s, "new"); c.onSleep(s, 1) }, lostRouterTime},
		"back again":             {func(c *core) { s := c.join(); c.welcome(s, "two"); c.onSleep(s, 1) }, 0},
		"the engine tells of its requests": {func(c *core) {
			c.setSignals(engines.Signals{Running: new(uint32)}, time.Now())
			s := c.join()
			c.welcome(s, "new")
			c.onSleep(s, 1)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := demandCore()
				one, two := c.join(), c.join()
				c.welcome(one, "one")
				c.welcome(two, "two")
				c.onWake(one, wakeMessage(1))
				c.endWake(nil)
				c.onSleep(one, 2)
				c.removeSession(two, nil) // Envoy may carry its answers on
				require.True(t, c.wanted())
				tc.next(c)
				time.Sleep(tc.keeps - time.Nanosecond)
				synctest.Wait()
				kept := c.wanted()
				require.Equal(t, tc.keeps > 0, kept)
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.False(t, c.wanted())
			})
		})
	}
}

func TestEngineIsKeptWithoutRouters(t *testing.T) {
	t.Parallel()
	c := demandCore()
	s := c.join()
	c.onWake(s, wakeMessage(1))
	c.endWake(nil)
	c.removeSession(s, nil)
	require.True(t, c.wanted())
	require.Equal(t, pb.State_STATE_SERVING, c.addSession(s).GetHello().GetState())
}

func TestEngineThatIsLetGoAsItGetsReadyIsStopped(t *testing.T) {
	t.Parallel()
	c := demandCore()
	s := c.join()
	c.onWake(s, wakeMessage(1))
	c.setPhase(waking, false)
	c.onSleep(s, 2)
	c.endWake(nil)
	_, healthy, _ := c.said(s)
	require.False(t, healthy)
	require.Equal(t, stopping, c.phase)
}

func TestEndOfTheEngineMeetsAWake(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		wake  bool
		since time.Duration
		want  bool
	}{
		"no Wake but the one that started it": {false, 0, false},
		"a Wake found it running just before": {true, wakeCarryOver - 1, true},
		"a Wake found it running long before": {true, wakeCarryOver, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := demandCore()
				s := c.join()
				c.onWake(s, wakeMessage(1))
				c.setPhase(waking, false)
				c.endWake(nil)
				if tc.wake {
					c.onWake(s, wakeMessage(2))
				}
				time.Sleep(tc.since)
				c.engineEnded()
				require.Equal(t, tc.want, c.wanted())
			})
		})
	}
}

func TestHelloSaysHowLongTheEngineHasServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := demandCore()
		s := c.join()
		c.onWake(s, wakeMessage(1))
		c.setPhase(waking, false)
		time.Sleep(time.Minute)
		c.endWake(nil)
		time.Sleep(5 * time.Second)
		c.setHealthy(false)
		c.setHealthy(true)
		require.Equal(t, 5*time.Second, c.addSession(s).GetHello().GetServingFor().AsDuration())
		c.engineEnded()
		require.Nil(t, c.addSession(s).GetHello().GetServingFor())
	})
}

func TestFailedWakeIsToldWithTextThatAMessageCanCarry(t *testing.T) {
	t.Parallel()
	c := demandCore()
	s := c.join()
	c.onWake(s, wakeMessage(7))
	c.setPhase(waking, false)
	c.endWake(&failure{reason: "bad \xff byte", detail: "HF_TOKEN=abcdefgh \xff"})
	list := c.messages(s)
	require.Len(t, list, 2)
	require.Equal(t, "bad ? byte", list[0].GetWakeResult().GetReason())
	require.Equal(t, "HF_TOKEN=*** ?", list[0].GetWakeResult().GetDetail())
	require.False(t, list[0].GetWakeResult().GetOk())
	require.Equal(t, pb.State_STATE_ASLEEP, list[1].GetStatus().GetState())
	require.EqualValues(t, 7, list[1].GetStatus().GetHandled())
	require.False(t, c.wanted())
}
