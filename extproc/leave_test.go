// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
)

// A client that leaves, in whatever phase and in whatever way, leaves nothing
// behind in the same instant: no waiter, no slot, no flight, no bytes.
func TestAClientThatLeavesLeavesNothing(t *testing.T) {
	t.Parallel()
	none, disconnected, released := holdstate.Pending, holdstate.OutcomeDisconnected, holdstate.OutcomeReleased
	for name, phase := range map[string]struct {
		begin   func(r *rig) *extproctest.Exchange
		outcome holdstate.Outcome
	}{
		"before its headers": {func(r *rig) *extproctest.Exchange {
			t := r.t
			return r.open(t, envoy.LaneEdge)
		}, none},
		"before its body": {func(r *rig) *extproctest.Exchange {
			t := r.t
			return r.ask(t, chat(false)[:1])
		}, none},
		"in its upload": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath, "content-length", "900000"), extproctest.RequestBody(strings.Repeat(" ", 5000), false))
			return x
		}, none},
		"held": {func(r *rig) *extproctest.Exchange {
			t := r.t
			return r.ask(t, chat(false))
		}, disconnected},
		"held, after a keepalive": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.ask(t, chat(true))
			elapse(20 * time.Second)
			return x
		}, disconnected},
		"held, without keepalives": {func(r *rig) *extproctest.Exchange {
			t := r.t
			return r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerKeepalive, "off"))
		}, disconnected},
		"released": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.ask(t, chat(false))
			r.slots.up(engineA, 0)
			elapse(time.Second)
			return x
		}, disconnected},
		"queued": {func(r *rig) *extproctest.Exchange {
			t := r.t
			r.slots.up(engineA, 0)
			return r.ask(t, chat(false))
		}, none},
		"the engine has not answered": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.ask(t, chat(false))
			r.slots.up(engineA, 1)
			r.engine.call(t, 1)
			return x
		}, released},
		"the engine has not answered, committed": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.ask(t, chat(false))
			r.slots.up(engineA, 1)
			r.engine.call(t, 1)
			elapse(20 * time.Second)
			return x
		}, released},
		"held again": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.ask(t, chat(false))
			r.slots.up(engineA, 1)
			r.engine.call(t, 1).fail("UF")
			elapse(time.Second)
			return x
		}, disconnected},
		"the answer has begun": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.ask(t, chat(true))
			r.slots.up(engineA, 1)
			body := r.engine.call(t, 1).respond(200)
			_, _ = io.WriteString(body, "data: 1\n\n")
			elapse(time.Second)
			return x
		}, released},
		"the head has come, but no byte": {func(r *rig) *extproctest.Exchange {
			t := r.t
			x := r.ask(t, chat(true))
			elapse(20 * time.Second)
			r.slots.up(engineA, 1)
			r.engine.call(t, 1).respond(200)
			elapse(time.Second)
			return x
		}, released},
		"refused": {func(r *rig) *extproctest.Exchange {
			t := r.t
			return r.ask(t, extproctest.Request("/nothing", ""))
		}, none},
	} {
		for way, leave := range leavings {
			t.Run(name+", "+way, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					t := r.t
					x := phase.begin(r)
					synctest.Wait()
					at := time.Now()
					leave(x)
					synctest.Wait()
					require.Equal(t, at, time.Now())
					for _, o := range holdstate.Outcomes() {
						want := 0
						if o == phase.outcome {
							want = 1
						}
						require.Equal(t, want, r.outcome(o), o)
					}
					r.requireAtRest(t)
					_ = x.End()
					for _, f := range r.slots.failures() {
						require.Contains(t, f, "refused", "a client that leaves is no fault of a replica")
					}
				})
			})
		}
	}
}

// When the client leaves, the call of the engine is canceled.
func TestAClientThatLeavesCancelsTheEnginesCall(t *testing.T) {
	t.Parallel()
	for name, leave := range leavings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(false))
				r.slots.up(engineA, 1)
				call := r.engine.call(t, 1)
				leave(x)
				<-call.canceled
			})
		})
	}
}

// The reset ends the call of the engine and the stream in the same moment: the
// replica must not be blamed for it, whichever is seen first.
func TestALeavingClientIsNotAFailedReplica(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 0)
		for range 300 {
			r.holding(budget)
			x := r.ask(t, chat(false))
			r.slots.free(1)
			synctest.Wait()
			x.Reset()
			synctest.Wait()
			require.Empty(t, r.slots.failures())
			r.slots.free(-1)
		}
		require.Equal(t, 300, r.outcome(holdstate.OutcomeReleased))
	})
}

// free changes how many slots the first replica has left.
func (s *fakeSlots) free(n int) {
	s.mu.Lock()
	s.replicas[0].free += n
	s.mu.Unlock()
	s.machine.Update(chatOfM)
}

// A slot is given back when the engine's side is closed, not before.
func TestTheSlotOutlivesTheEnginesCall(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.engine.script = func(c *call) { // an engine that notices late
			<-c.Context().Done()
			<-time.After(3 * time.Second)
		}
		x := r.ask(t, chat(false))
		r.slots.up(engineA, 1)
		synctest.Wait()
		x.Reset()
		elapse(2 * time.Second)
		require.Equal(t, 1, r.slots.taken())
		elapse(2 * time.Second)
		require.Zero(t, r.slots.taken())
	})
}

func TestAServerThatStopsEndsItsHolds(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		var all []*extproctest.Exchange
		for range 50 {
			all = append(all, r.ask(t, chat(true)))
		}
		elapse(20 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r.WaitForHolds(ctx)
		require.Error(t, ctx.Err(), "they hold on")
		r.machine.EndAll()
		r.WaitForHolds(t.Context())
		r.grpc.GracefulStop()
		for _, x := range all {
			require.ErrorIs(t, x.End(), io.EOF)
			got := x.Events()
			require.True(t, strings.HasSuffix(got[len(got)-1], " end"))
		}
		require.Equal(t, 50, r.outcome(holdstate.OutcomeDraining))
	})
}
