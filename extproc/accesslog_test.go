// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
)

func TestARecordFreesTheSlotOfItsRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 2)
		one, endOne := r.logStream(t, envoy.LogEdge)
		two, endTwo := r.logStream(t, envoy.LogEdge) // each of Envoy's workers has its own
		other, endOther := r.logStream(t, "another log")
		first, second := r.served(t), r.served(t)
		require.Equal(t, 2, r.slots.taken())
		one("", envoy.ModeNative)
		one(uuid.NewString(), envoy.ModeNative)
		other(first, envoy.ModeNative)
		require.Equal(t, 2, r.slots.taken(), "none of these is a request's end")
		two(first, envoy.ModeNative)
		require.Equal(t, 1, r.slots.taken())
		one(first, envoy.ModeNative)
		require.Equal(t, 1, r.slots.taken())
		two(second, envoy.ModeNative)
		require.Zero(t, r.slots.taken())
		endOne()
		endTwo()
		endOther()
	})
}

// The address that Envoy has found may be invented by the client, unless a proxy in front
// of Envoy is trusted.
func TestTheSourceIsThePeerUnlessAProxyIsTrusted(t *testing.T) {
	t.Parallel()
	for log, want := range map[string]string{envoy.LogEdge: "192.0.2.9", envoy.LogForwarded: "192.0.2.1"} {
		bubble(t, func(r *rig) {
			t := r.t
			r.slots.up(engineA, 1)
			id := r.served(t)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			stream, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(ctx)
			require.NoError(t, err)
			require.NoError(t, stream.Send(extproctest.Logged(log, extproctest.LogEntryOf(func(e *dataaccesslogv3.HTTPAccessLogEntry) { e.Request.RequestId = id }))))
			synctest.Wait()
			require.Equal(t, want, r.only(t).Source.String())
		})
	}
}

// A client may send another request with the id of one in flight. The record of that
// request has the same id, and must not end the first one.
func TestARecordOfAnotherRequestWithTheSameId(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		record, end := r.logStream(t, envoy.LogEdge)
		r.slots.up(engineA, 1)
		id := r.served(t)
		require.ErrorIs(t, r.ask(t, extproctest.Request(chatPath, `{"model":"none"}`, headerRequestID, id)).End(), io.EOF)
		record(id, envoy.ModeLocal)
		require.ErrorIs(t, r.ask(t, extproctest.Request("/nothing", "", headerRequestID, id)).End(), io.EOF)
		record(id, envoy.ModeLocal)
		record(id, "") // its client left before Envoy had our answer
		require.Equal(t, 1, r.slots.taken(), "Envoy still carries the first")
		record(id, envoy.ModeNative)
		require.Zero(t, r.slots.taken())
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s1"))
		require.Len(t, x.Events(), 2)
		r.onLogEntry(&wire.LogEntry{RequestID: id, StreamID: "s1"}) // a client that left before Envoy had our answer
		require.Zero(t, r.slots.taken())
		x.Reset()
		end()
	})
}

// A client may leave before Envoy has the router's answer. Then its record arrives before
// the request is carried.
func TestASlotIsGivenBackWhenTheRecordCameBefore(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		id := uuid.NewString()
		record, end := r.logStream(t, envoy.LogEdge)
		r.slots.up(engineA, 1)
		usual := r.decide
		r.decide = func(*Request) Decision {
			g, took := r.slots.Take(nil)
			require.Equal(t, holdstate.Taken, took)
			r.onLogEntry(&wire.LogEntry{StreamID: "s1", Left: true}) // it was sent before Envoy had an answer
			return Decision{Grant: g}
		}
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.StreamHeader, "s1"))
		require.Empty(t, x.Events())
		require.Zero(t, r.slots.taken())
		require.Zero(t, r.InFlight())
		x.Reset()
		r.decide = usual
		record(id, envoy.ModeNative)
		end()
	})
}

func TestRequestsEndWhenEnvoyHasGone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 3)
		_, endOne := r.logStream(t, envoy.LogEdge)
		_, endTwo := r.logStream(t, envoy.LogEdge)
		r.served(t)
		r.served(t)
		third := r.ask(t, extproctest.Request("/v1/messages", `{"model":"m"}`))
		elapse(time.Second)
		endOne()
		elapse(time.Minute)
		require.Equal(t, 3, r.slots.taken(), "one worker's stream is still there")
		endTwo()
		elapse(envoyGone - time.Second)
		require.Equal(t, 3, r.slots.taken())
		_, endThree := r.logStream(t, envoy.LogEdge)
		elapse(time.Hour)
		require.Equal(t, 3, r.slots.taken(), "it came back in time")
		endThree()
		elapse(time.Second)
		r.slots.up(engineB, 1)
		later := r.served(t)
		elapse(envoyGone)
		require.Equal(t, 1, r.slots.taken(), "what began after the end is another Envoy's")
		require.Contains(t, r.log.String(), "ending the requests that it carried")
		third.Reset()
		record, end := r.logStream(t, envoy.LogEdge)
		record(later, envoy.ModeNative)
		end()
		elapse(time.Hour)
	})
}
