// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

const bothDied = `0s 502 {"error":{"code":"backend_error","message":"the engines of model m ended the connection before they answered","source":"router"}}`

// again is a pass through the rehold lane after an attempt on address.
func (r *rig) again(t *testing.T, id, address string, sent int) *extproctest.Exchange {
	t.Helper()
	x := r.open(t, envoy.LaneRehold)
	x.Send(extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.FailedHeader, fmt.Sprintf("%s;sent=%d", address, sent))...)
	return x
}

// served begins a request that Envoy carries, and gives its id.
func (r *rig) served(t *testing.T) string {
	t.Helper()
	id := uuid.NewString()
	x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id))
	require.Contains(t, x.Events()[0], "serve on ")
	_ = x.Stream.CloseSend()
	return id
}

func requireServed(t *testing.T, x *extproctest.Exchange, at, address string) {
	t.Helper()
	_ = x.Stream.CloseSend()
	x.RequireEnded(t, at+" serve on "+address+", 13 bytes", at+" body 13 end")
}

func TestTheReholdLaneTriesTheNextReplica(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := r.served(t)
		r.slots.up(engineB, 1)
		require.Equal(t, 1, r.slots.taken())
		x := r.again(t, id, engineA, 200)
		require.Equal(t, 1, len(x.Events())-1)
		requireServed(t, x, "0s", engineB)
		require.Equal(t, []string{engineA + " ended the connection before its answer"}, r.slots.failures())
		require.Equal(t, 1, r.slots.taken(), "one slot, on the replica that it is on")
		require.Equal(t, 1, r.InFlight())
		require.Equal(t, 1, r.routedNow(), "counted once")

		r.again(t, id, engineB, 200).RequireEnded(t, bothDied)
		require.Zero(t, r.InFlight())
	})
}

// TestTheReholdLaneKeepsTheClientsTimeouts though their headers did not go on with it.
func TestTheReholdLaneKeepsTheClientsTimeouts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header, value string
		want          []string
	}{
		"how long it waits": {headerPatience, "20s", []string{"15s head 200", `15s " "`, `20s "{\"error\":{` + quoted(wakingObject) + `}" end`}},
		"no keepalives":     {headerKeepalive, "off", []string{`5m0s 503 {"error":{` + wakingObject + `}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.slots.up(engineA, 1)
				held := func(q *Request) Decision {
					w, err := r.machine.Hold(holdstate.Request{Target: chatOfM, Bytes: q.BodySize, Seq: q.Seq, Claim: r.slots})
					require.NoError(t, err)
					return Decision{Waiter: w, Held: true, Budget: cmp.Or(max(q.Patience, 0), budget)}
				}
				r.decide = func(*Request) Decision {
					r.decide = held
					g, took := r.slots.Take(nil)
					require.Equal(t, holdstate.Taken, took)
					return Decision{Grant: g}
				}
				id := uuid.NewString()
				x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, c.header, c.value))
				require.Contains(t, x.Events()[0], "serve on ")
				_ = x.Stream.CloseSend()
				r.again(t, id, engineA, 0).RequireEnded(t, c.want...)
			})
		})
	}
}

func TestARefusedConnectionDoesNotCountAsADeath(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := r.served(t)
		last := engineA
		for i := range maxPasses {
			next := fmt.Sprintf("10.0.1.%d:8000", i)
			r.slots.up(next, 1)
			x := r.again(t, id, last, 0)
			x.Events()
			requireServed(t, x, "0s", next)
			last = next
		}
		r.slots.up(engineB, 1)
		r.again(t, id, last, 0).RequireEnded(t, bothDied) // but not for ever
		require.Contains(t, r.slots.failures(), last+" refused the connection")
	})
}

func TestTheSameEngineMayDieTwice(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := r.served(t)
		for range 2 {
			x := r.again(t, id, engineA, 200)
			require.Empty(t, x.Events())
			r.slots.up(engineA, 1)
			requireServed(t, x, "0s", engineA)
		}
		r.again(t, id, engineA, 200).RequireEnded(t, bothDied)
	}, silent)
}

// A replica that is this router's own edge sends requests back to it. Only a request that
// is in flight here is refused, not one with the via header of another router.
func TestARequestThatComesBackIsRefused(t *testing.T) {
	t.Parallel()
	const loop = `508 {"error":{"code":"loop_detected","message":"the engine of model m is this router itself: the request came back","source":"router"}}`
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 3)
		id := uuid.NewString()
		first := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.StreamHeader, "s1"))
		require.Contains(t, first.Events()[0], "serve on")
		r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s2", envoy.ViaHeader, "another, s1")).RequireEnded(t, "0s "+loop)
		r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s3", envoy.ViaHeader, "another", envoy.ViaHeader, "s1")).RequireEnded(t, "0s "+loop)
		require.Equal(t, []string{engineA, engineA}, r.slots.cameBack)

		other := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s4", envoy.ViaHeader, "another", envoy.ViaHeader, ""))
		require.Contains(t, other.Events()[0], "serve on")
		lane := r.open(t, envoy.LaneRehold)
		lane.Send(extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.ViaHeader, "s1")...)
		require.Empty(t, lane.Events(), "the lane's pass is the request itself")
		require.Len(t, r.slots.cameBack, 2)
		r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s5", envoy.ViaHeader, "s1")).RequireEnded(t, "0s "+loop)
		require.Len(t, r.slots.cameBack, 3, "one replica has had it")
		lane.Reset()
		synctest.Wait()
		r.onLogEntry(&wire.LogEntry{StreamID: "s1", Native: true, Status: 200})
		r.onLogEntry(&wire.LogEntry{StreamID: "s4", Native: true, Status: 200})
	})
	bubble(t, func(r *rig) { // in the relay
		t := r.t
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s1", envoy.ViaHeader, "another"))
		r.slots.up(engineA, 1)
		call := r.engine.call(t, 1)
		require.Equal(t, []string{"another", "s1"}, call.Header.Values(envoy.ViaHeader))
		r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s2", envoy.ViaHeader, "another,s1")).RequireEnded(t, "0s "+loop)
		require.Equal(t, []string{engineA}, r.slots.cameBack)
		call.fail("UC")
		synctest.Wait()
		r.slots.up(engineB, 1)
		second := r.engine.call(t, 2)
		r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s3", envoy.ViaHeader, "s1")).RequireEnded(t, "0s "+loop)
		require.Equal(t, []string{engineA}, r.slots.cameBack, "which of the two sent it is not known")
		_ = second.respond(508).Close()
		require.ErrorIs(t, x.End(), io.EOF)
	})
}

// A request whose answer Envoy could not read is not tried again, and its replica stays up.
func TestAnAnswerThatIsNoHTTPIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := r.served(t)
		r.slots.up(engineB, 1)
		x := r.open(t, envoy.LaneRehold)
		x.Send(extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.FailedHeader, engineA+";sent=200;received=17")...)
		x.RequireEnded(t, `0s 502 {"error":{"code":"backend_error","message":"the engine of model m sent an answer that is not valid HTTP, or has more headers than Envoy takes","source":"router"}}`)
		require.Empty(t, r.slots.failures())
		require.Zero(t, r.slots.taken())
	})
}

// With no replica left the request is held in the lane, in the place of its arrival, and
// answered over the relay lane.
func TestTheReholdLaneHoldsWithoutAReplica(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := r.served(t)
		x := r.again(t, id, engineA, 200)
		elapse(20 * time.Second)
		require.Equal(t, 1, r.machine.Demand(chatOfM.Model))
		r.slots.up(engineB, 1)
		_ = r.engine.call(t, 1).respond(200).Close()
		x.RequireEnded(t, "15s head 200", "15s "+space, `20s "" end`)
		require.Equal(t, 1, r.outcome(holdstate.OutcomeReleased))
	})
	bubble(t, func(r *rig) { // a second death, this time in the relay
		t := r.t
		r.slots.up(engineA, 1)
		id := r.served(t)
		x := r.again(t, id, engineA, 200)
		require.Empty(t, x.Events())
		r.slots.up(engineB, 1)
		r.engine.call(t, 1).fail("UC")
		x.RequireEnded(t, bothDied)
	})
}

// A request that waited keeps its place when its engine dies under it in Envoy.
func TestAPlaceIsKeptInTheReholdLane(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		id := uuid.NewString()
		first := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, headerKeepalive, "off"))
		second := r.ask(t, chat(false))
		r.slots.up(engineA, 1)
		requireServed(t, first, "0s", engineA)
		third := r.again(t, id, engineA, 0)
		elapse(time.Second)
		require.Equal(t, 2, r.machine.Demand(chatOfM.Model))
		r.slots.up(engineB, 1)
		requireServed(t, third, "1s", engineB)
		require.Empty(t, second.Events())
		require.Equal(t, 1, r.endAllNow())
		_ = r.engine.call(t, 1).respond(200).Close()
		require.ErrorIs(t, second.End(), io.EOF)
	})
}

// After a restart the lane brings requests that this process never saw.
func TestTheReholdLaneTrustsAUnixSocketAfterARestart(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := uuid.NewString()
		x := r.again(t, id, engineB, 200)
		x.Events()
		requireServed(t, x, "0s", engineA)
		require.Empty(t, r.slots.failures())
		record, end := r.logStream(t, envoy.LogEdge)
		record(id, envoy.ModeNative)
		end()
	})
}

// Over TCP whoever reaches the port could name the lane, and would skip the keys.
func TestTheReholdLaneOverTCPSkipsNoKeys(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.overTCP.Store(true)
		r.authenticate = func(Credentials) (fakeCall, *refusal.Refusal) { return fakeCall{}, refusal.Unauthorized("no key") }
		r.slots.up(engineA, 1)
		x := r.again(t, uuid.NewString(), engineB, 200)
		x.RequireEnded(t, `0s 503 {"error":{"code":"router_unavailable","message":"the router was started again while this request was under way; retry in 5 seconds","source":"router","retry_after":5}}`)
		require.Zero(t, r.slots.taken())

		r.authenticate = nil
		id := r.served(t)
		r.slots.up(engineB, 1)
		requireServed(t, r.again(t, id, engineA, 200), "0s", engineB)
		record, end := r.logStream(t, envoy.LogEdge)
		record(id, envoy.ModeNative)
		end()
	})
}

// A pass without a description of its attempt gives the replica up, but counts no death.
func TestWithoutADescriptionOfTheAttemptNoEngineDied(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := r.served(t)
		for i, value := range []string{"", "x", "host:80;sent=9", engineA + ";sent=-1"} {
			next := fmt.Sprintf("10.0.1.%d:8000", i)
			r.slots.up(next, 1)
			x := r.open(t, envoy.LaneRehold)
			x.Send(extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.FailedHeader, value)...)
			require.True(t, strings.HasSuffix(x.Events()[0], "serve on "+next+", 13 bytes"))
			_ = x.Stream.CloseSend()
		}
		record, end := r.logStream(t, envoy.LogEdge)
		record(id, envoy.ModeNative)
		end()
	})
}

// A client that left while its request was in the lane: Envoy's record and the
// lane's stream end in either order.
func TestAClientThatLeavesInTheReholdLane(t *testing.T) {
	t.Parallel()
	for _, recordFirst := range []bool{true, false} {
		bubble(t, func(r *rig) {
			t := r.t
			record, end := r.logStream(t, envoy.LogEdge)
			r.slots.up(engineA, 1)
			id := r.served(t)
			x := r.again(t, id, engineA, 200)
			elapse(time.Second)
			if recordFirst {
				record(id, envoy.ModeNative)
			}
			x.Reset()
			elapse(0)
			if !recordFirst {
				record(id, envoy.ModeNative)
			}
			require.Zero(t, r.InFlight())
			require.Equal(t, 1, r.outcome(holdstate.OutcomeDisconnected))
			end()
		})
	}
}

// A client may leave while Envoy sends its request to the lane. Then its record arrives
// before the lane's pass, and no other record follows.
func TestAReholdPassEndsWhenItsClientHasLeft(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		id := uuid.NewString()
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.StreamHeader, "s1"))
		require.Equal(t, 1, r.slots.taken())
		r.onLogEntry(&wire.LogEntry{RequestID: id, StreamID: "s1", Left: true})
		require.Zero(t, r.slots.taken())
		lane := r.open(t, envoy.LaneRehold)
		lane.Send(extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.FailedHeader, engineA+";sent=10")...)
		require.Empty(t, lane.Events())
		require.Zero(t, r.slots.taken())
		require.Zero(t, r.InFlight())
		x.Reset()
		lane.Reset()
		elapse(logWait + time.Second)
		require.Equal(t, StatusClientGone, r.only(t).Status)
	})
}
