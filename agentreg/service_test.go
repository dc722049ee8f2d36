// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

func TestServingAgentIsInRoutingFromItsHelloToTheEndOfItsStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		require.Equal(t, []string{"welcome"}, a.took())
		require.Equal(t, 1, rt.Serving(llama))
		require.Equal(t, 1, rt.changesOf(llama))
		require.Equal(t, []string{"a"}, rt.serving)
		slot, o := rt.Take(llama)
		require.Equal(t, Taken, o)
		require.Equal(t, "127.0.0.1:8000", slot.Agent().Address)
		slot.Release()

		begin := time.Now()
		a.end()
		synctest.Wait()
		require.Zero(t, time.Since(begin))
		require.Zero(t, rt.Serving(llama))
		_, o = rt.Take(llama)
		require.Equal(t, None, o)
		require.Empty(t, rt.Agents())
		require.Empty(t, rt.Models())
	})
}

func TestByeAndHalfCloseRemoveTheAgent(t *testing.T) {
	t.Parallel()
	ends := map[string]func(a *scripted){
		"bye": func(a *scripted) { a.send(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}}) },
		"half close": func(a *scripted) {
			require.NoError(a.t, a.stream.CloseSend())
			synctest.Wait()
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := newRouter(t)
				a := rt.connect(aHello())
				end(a)
				require.True(t, a.ended())
				require.Zero(t, rt.Serving(llama))
			})
		})
	}
}

func TestSilentAgentIsRemovedAfterTheLivenessTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		time.Sleep(10 * time.Second)
		a.status(pb.State_STATE_SERVING)
		time.Sleep(protocol.DefaultLiveness - time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, rt.Serving(llama), "it was heard less than the liveness time ago")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Zero(t, rt.Serving(llama))
		require.True(t, a.ended())
	})
}

func TestStreamWithoutHelloEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(nil)
		time.Sleep(protocol.DefaultLiveness)
		synctest.Wait()
		require.True(t, a.ended())
		require.Equal(t, codes.DeadlineExceeded, status.Code(a.err))
	})
}

// A stream for a router that this one has replaced must say Hello as soon.
func TestStreamForAFormerRouterWithoutHelloEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		rt.SetFormer(map[string]string{"before": "/none"})
		ctx, end := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), protocol.RouterKey, "before"), time.Hour)
		defer end()
		st, err := rt.client.Connect(ctx)
		require.NoError(t, err)
		begin := time.Now()
		_, err = st.Recv()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.Equal(t, protocol.DefaultLiveness, time.Since(begin))
	})
}

func TestFirstMessageMustBeAHello(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(nil)
		a.send(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}})
		require.Equal(t, []string{"reject invalid_hello"}, a.took())
		require.True(t, a.ended())
	})
}

func TestSecondHelloEndsTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		a.send(&pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: aHello()}})
		require.Equal(t, []string{"welcome", "reject invalid_hello"}, a.took())
		require.Zero(t, rt.Serving(llama))
	})
}

func TestNewerInstanceReplacesTheOlderForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		older := rt.connect(aHello())
		newer := rt.connect(aHello(restarted))
		require.Equal(t, []string{"welcome", "reject superseded"}, older.took())
		require.True(t, older.ended())
		require.False(t, newer.ended())
		require.Equal(t, 1, rt.Serving(llama))
		require.Equal(t, instance(2), rt.Agents()[0].Instance)

		again := rt.connect(aHello())
		require.Equal(t, []string{"reject superseded"}, again.took())
		require.False(t, newer.ended())
		require.Equal(t, 1, rt.Serving(llama))
	})
}

func TestSameInstanceReplacesItsOwnStreamAndKeepsItsSlots(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"while the old stream is up", "after the old stream ended"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := newRouter(t)
				old := rt.connect(aHello())
				one, _ := rt.Take(llama)
				two, _ := rt.Take(llama)
				if how == "after the old stream ended" {
					old.end()
					synctest.Wait()
				}
				next := rt.connect(aHello())
				require.True(t, old.ended())
				require.NotContains(t, old.took(), "reject superseded")
				require.Equal(t, []string{"welcome"}, next.took())
				_, o := rt.Take(llama)
				require.Equal(t, Full, o, "the engine still works on two requests")
				one.Release()
				three, o := rt.Take(llama)
				require.Equal(t, Taken, o)
				two.Release()
				three.Release()
				require.Zero(t, rt.Agents()[0].InFlight)
				next.end()
				synctest.Wait()
				require.Empty(t, rt.departed)
			})
		})
	}
}

func TestLingeringSlotsAreForgottenWhenReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		slot, _ := rt.Take(llama)
		a.end()
		synctest.Wait()
		require.Len(t, rt.departed, 1)
		slot.Release()
		slot.Release()
		require.Empty(t, rt.departed)
	})
}

func TestUnhealthyAgentLeavesRoutingAndComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		a.status(pb.State_STATE_SERVING, unhealthy)
		require.Zero(t, rt.Serving(llama))
		a.status(pb.State_STATE_SERVING)
		require.Equal(t, 1, rt.Serving(llama))
		require.Equal(t, 3, rt.changesOf(llama))
	})
}

func TestRefusingReplicaIsOutUntilItsAgentSaysHealthyAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		slot, _ := rt.Take(llama)
		slot.Failed("connection refused")
		slot.Failed("connection refused")
		synctest.Wait()
		require.Equal(t, []string{"welcome", "status?"}, a.took())
		require.Zero(t, rt.Serving(llama))

		a.status(pb.State_STATE_SERVING, stale)
		require.Zero(t, rt.Serving(llama), "sent before the question arrived")
		a.status(pb.State_STATE_SERVING, unhealthy)
		require.Zero(t, rt.Serving(llama))
		a.status(pb.State_STATE_SERVING)
		require.Equal(t, 1, rt.Serving(llama))
		require.EqualValues(t, 1, rt.Agents()[0].InFlight, "Failed releases nothing")
		slot.Release()
		require.Zero(t, rt.Agents()[0].InFlight)
	})
}

func TestAgentWhoseAddressIsTheRoutersOwnIsRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		slot, _ := rt.Take(llama)
		slot.CameBack()
		slot.CameBack()
		synctest.Wait()
		require.Equal(t, []string{"welcome", "reject address_not_allowed"}, a.took())
		require.Zero(t, rt.Serving(llama))
		slot.Release()
		require.Empty(t, rt.Agents())
	})
}

func TestReplicaThatKeepsRefusingIsAskedLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		time.Sleep(5 * time.Second)
		begin := time.Now()
		for range 8 {
			slot, o := rt.Take(llama)
			require.Equal(t, Taken, o)
			slot.Failed("reset")
			slot.Release()
			for rt.Serving(llama) == 0 {
				a.status(pb.State_STATE_SERVING)
				time.Sleep(10 * time.Millisecond)
			}
		}
		require.Greater(t, time.Since(begin), time.Second)
		require.Less(t, time.Since(begin), 10*time.Second)
	})
}

func TestAgentThatDoesNotReadLosesItsStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello())
		rt.update(func() {
			sess := rt.agents["a"].session
			for over := false; !over; { // the writer takes some, but not as fast as this
				sess.send(rt.welcome())
				select {
				case <-sess.done:
					over = true
				default:
				}
			}
		})
		synctest.Wait()
		require.True(t, a.ended())
		require.Zero(t, rt.Serving(llama))
	})
}

func TestSucceedTellsEveryAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a, b := rt.connect(aHello()), rt.connect(aHello(named("b")))
		rt.connect(nil) // it has sent no Hello yet
		require.Len(t, rt.Succeed(), 2)
		synctest.Wait()
		for _, x := range []*scripted{a, b} {
			require.Contains(t, x.took(), "successor")
			require.False(t, x.ended())
		}
	})
}

func TestDrainEndsEveryStreamAndTakesNoNewOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a, b := rt.connect(aHello()), rt.connect(aHello(named("b")))
		rt.Drain()
		synctest.Wait()
		for _, x := range []*scripted{a, b, rt.connect(aHello(named("c")))} {
			require.True(t, x.ended())
			require.Equal(t, codes.Unavailable, status.Code(x.err))
		}
		require.Zero(t, rt.Serving(llama))
	})
}

// An agent divides its slots among its routers: this one takes no more than its share,
// from the Hello on.
func TestARouterTakesItsShareOfTheSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		a := rt.connect(aHello(func(h *pb.Hello) { h.Slots, h.Share = 4, new(uint32(1)) }))
		slot, o := rt.Take(llama)
		require.Equal(t, Taken, o)
		_, o = rt.Take(llama)
		require.Equal(t, Full, o)
		require.Equal(t, Capacity{Replicas: 1, Slots: 1}, rt.Capacity(llama))
		before := rt.changesOf(llama)
		a.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.Routers, s.Slots = 2, new(uint32(2)) })
		require.Greater(t, rt.changesOf(llama), before, "who waits may have the new one")
		second, o := rt.Take(llama)
		require.Equal(t, Taken, o)
		a.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.Routers, s.Slots = 3, new(uint32(1)) })
		second.Release()
		require.Equal(t, Capacity{Replicas: 1, Slots: 1}, rt.Capacity(llama))
		slot.Release()
		require.EqualValues(t, 1, rt.Capacity(llama).Free)
		a.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.Routers, s.Slots = 9, new(uint32(0)) })
		_, o = rt.Take(llama)
		require.Equal(t, Full, o, "it serves, and has no slot for this router now")
		require.Equal(t, 1, rt.Serving(llama))
		a.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.Routers = 1 })
		require.EqualValues(t, 4, rt.Capacity(llama).Free, "an agent that does not divide them")
		require.EqualValues(t, 4, rt.Agents()[0].Slots)
	})
}

func TestTokenAuth(t *testing.T) {
	t.Parallel()
	tokens := []string{"old", "new"}
	cases := map[string]struct {
		tokens  []string
		headers []string
		ok      bool
	}{
		"one of the tokens":  {tokens, []string{"Bearer new"}, true},
		"scheme in any case": {tokens, []string{"bearer old"}, true},
		"wrong token":        {tokens, []string{"Bearer newer"}, false},
		"other scheme":       {tokens, []string{"Basic new"}, false},
		"no header":          {tokens, nil, false},
		"two headers":        {tokens, []string{"Bearer new", "Bearer new"}, false},
		"empty token":        {[]string{""}, []string{"Bearer "}, false},
		"no tokens":          {nil, nil, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt := newRouter(t, grpc.StreamInterceptor(TokenAuth(func() []string { return c.tokens })))
				ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{"authorization": c.headers})
				st, err := rt.client.Connect(ctx)
				require.NoError(t, err)
				_ = st.Send(&pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: aHello()}}) // Recv returns why it fails
				_, err = st.Recv()
				if c.ok {
					require.NoError(t, err)
					return
				}
				require.Equal(t, codes.Unauthenticated, status.Code(err))
				require.Zero(t, rt.Serving(llama))
			})
		})
	}
}
