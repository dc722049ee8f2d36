// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/holdstate"
)

// only is the one record there is.
func (r *rig) only(t *testing.T) *Record {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.records, 1)
	return r.records[0]
}

func (r *rig) noRecord(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.records)
}

func TestTheRecordOfAServedRequestComesFromEnvoy(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		record, end := r.logStream(t, envoy.LogEdge)
		defer end()
		r.slots.up(engineA, 1)
		id := uuid.NewString()
		x := r.ask(t, request(chatPath, `{"model":"m"}`, headerRequestID, id, headerClientID, "mine",
			"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
		x.reset()
		r.noRecord(t)
		record(id, envoy.ModeNative)
		rec := r.only(t)
		require.Equal(t, VerdictServe, rec.Verdict)
		require.Equal(t, id, rec.Request.ID)
		require.Equal(t, "m", rec.Request.Model)
		require.Equal(t, "mine", rec.Request.ClientIDs[0])
		require.Equal(t, "0af7651916cd43dd8448eb211c80319c", rec.TraceID)
		require.Equal(t, engineA, rec.Grant.Address())
		require.Equal(t, rec.WireStatus, rec.Status)
		require.Equal(t, "POST", rec.Method)
		require.Empty(t, rec.ErrorCode)
	})
}

func TestAnAnswerOfOursIsJoinedWithItsRecord(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		_, end := r.logStream(t, envoy.LogEdge)
		defer end()
		x := r.ask(t, request(chatPath, `{"model":"none"}`, headerRequestID, "no uuid", envoy.StreamHeader, "s1"))
		require.ErrorIs(t, x.end(), io.EOF)
		require.Zero(t, r.InFlight(), "it was answered")
		r.noRecord(t)
		r.record(&logEntry{requestID: "no uuid", streamID: "s1", local: true, status: 404, bytesOut: 7})
		rec := r.only(t)
		require.Equal(t, VerdictRefuse, rec.Verdict)
		require.NotEqual(t, "no uuid", rec.Request.ID)
		require.Equal(t, int64(7), rec.BytesOut)
		require.Equal(t, 404, rec.WireStatus)
		require.Equal(t, 404, rec.Status)
		require.Equal(t, "model_not_found", rec.ErrorCode)
	})
}

func TestARecordOfOursIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		_, end := r.logStream(t, envoy.LogEdge)
		x := r.ask(t, request("/nothing", ""))
		require.ErrorIs(t, x.end(), io.EOF)
		pass(logWait - time.Second)
		r.noRecord(t)
		pass(2 * time.Second)
		rec := r.only(t)
		require.Equal(t, 404, rec.Status)
		require.Zero(t, rec.WireStatus)
		require.Nil(t, rec.Request.Endpoint)
		end()
	})
}

func TestHowRequestsEndOnRecord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run     func(r *rig, x *exchange)
		stream  bool
		status  int
		code    string
		outcome holdstate.Outcome
		held    time.Duration
	}{
		"expired": {
			func(*rig, *exchange) { pass(budget + time.Second) }, false, 503, "model_waking", holdstate.OutcomeExpired, budget,
		},
		"the client left": {
			func(_ *rig, x *exchange) { pass(time.Minute); x.reset() }, true, StatusClientGone, "", holdstate.OutcomeDisconnected, time.Minute,
		},
		"draining": {
			func(r *rig, _ *exchange) { pass(time.Second); r.machine.Drain() }, false, 503, "draining", holdstate.OutcomeDraining, time.Second,
		},
		"the wake failed": {
			func(r *rig, _ *exchange) { pass(time.Second); r.machine.Fail("m", "no room") }, false, 503, "model_waking", holdstate.OutcomeWakeFailed, time.Second,
		},
		"answered by the engine": {
			func(r *rig, _ *exchange) {
				pass(time.Second)
				r.slots.up(engineA, 1)
				_ = r.engine.call(r.t, 1).respond(429).Close()
			}, false, 429, "", holdstate.OutcomeReleased, time.Second,
		},
		"the engine's error came late": {
			func(r *rig, _ *exchange) {
				pass(interval + time.Second)
				r.slots.up(engineA, 1)
				_ = r.engine.call(r.t, 1).respond(500).Close()
			}, true, 500, "backend_error", holdstate.OutcomeReleased, interval + time.Second,
		},
		"the client left in the answer": {
			func(r *rig, x *exchange) {
				r.slots.up(engineA, 1)
				r.engine.call(r.t, 1).respond(200)
				pass(time.Second)
				x.reset()
			}, true, StatusClientGone, "", holdstate.OutcomeReleased, 0,
		},
		"the wait for a slot took too long": {
			func(r *rig, _ *exchange) { pass(time.Second); r.slots.up(engineA, 0); pass(time.Hour) }, false, 504, "request_timeout", holdstate.OutcomeReleased, time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				x := r.ask(r.t, chat(c.stream))
				c.run(r, x)
				pass(time.Millisecond)
				x.reset()
				pass(logWait + time.Millisecond)
				rec := r.only(r.t)
				require.Equal(r.t, VerdictHold, rec.Verdict)
				require.Equal(r.t, c.status, rec.Status)
				require.Equal(r.t, c.code, rec.ErrorCode)
				require.Equal(r.t, c.outcome, rec.Outcome)
				require.Equal(r.t, c.held, rec.Held.Truncate(time.Second))
			})
		})
	}
}

func TestTraceIDs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": "0af7651916cd43dd8448eb211c80319c",
		"":                                    "",
		"00-0af7651916cd43dd8448eb211c80319c": "",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01": "",
		"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": "",
	} {
		require.Equal(t, want, traceID([]byte(text)), text)
	}
}
