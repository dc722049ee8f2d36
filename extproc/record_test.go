// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
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
	"github.com/holdgate/holdgate/internal/target"
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
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, headerClientID, "mine",
			"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
		x.Reset()
		r.noRecord(t)
		record(id, envoy.ModeNative)
		rec := r.only(t)
		require.Equal(t, VerdictServe, rec.Verdict)
		require.Equal(t, id, rec.Request.ID)
		require.Equal(t, "m", rec.Request.Model)
		require.Equal(t, "mine", rec.Request.ClientIDs[0])
		require.Equal(t, "0af7651916cd43dd8448eb211c80319c", rec.TraceID)
		require.Equal(t, engineA, rec.Grant.Replica().Address)
		require.Equal(t, rec.WireStatus, rec.Status)
		require.Equal(t, "POST", rec.Method)
		require.Empty(t, rec.ErrorCode)
	})
}

func TestAnAnswerOfTheRouterIsJoinedWithItsRecord(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		_, end := r.logStream(t, envoy.LogEdge)
		defer end()
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"none"}`, headerRequestID, "no uuid", envoy.StreamHeader, "s1"))
		require.ErrorIs(t, x.End(), io.EOF)
		require.Zero(t, r.InFlight(), "it was answered")
		r.noRecord(t)
		r.onLogEntry(&wire.LogEntry{RequestID: "no uuid", StreamID: "s1", Local: true, Status: 404, BytesOut: 7})
		rec := r.only(t)
		require.Equal(t, VerdictRefuse, rec.Verdict)
		require.NotEqual(t, "no uuid", rec.Request.ID)
		require.Equal(t, int64(7), rec.BytesOut)
		require.Equal(t, 404, rec.WireStatus)
		require.Equal(t, 404, rec.Status)
		require.Equal(t, "model_not_found", rec.ErrorCode)
	})
}

func TestTheRecordOfAnAnswerOfTheRouterIsWaitedForBriefly(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		_, end := r.logStream(t, envoy.LogEdge)
		x := r.ask(t, extproctest.Request("/nothing", ""))
		require.ErrorIs(t, x.End(), io.EOF)
		elapse(logWait - time.Second)
		r.noRecord(t)
		elapse(2 * time.Second)
		rec := r.only(t)
		require.Equal(t, 404, rec.Status)
		require.Zero(t, rec.WireStatus)
		require.Less(t, rec.Duration, logWait, "the wait for the record does not count")
		require.Nil(t, rec.Request.Endpoint)
		end()
	})
}

func TestHowRequestsEndOnRecord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run     func(r *rig, x *extproctest.Exchange)
		stream  bool
		status  int
		code    string
		outcome holdstate.Outcome
		held    time.Duration
	}{
		"expired": {
			func(*rig, *extproctest.Exchange) { elapse(budget + time.Second) }, false, 503, "model_waking", holdstate.OutcomeExpired, budget,
		},
		"the client left": {
			func(_ *rig, x *extproctest.Exchange) { elapse(time.Minute); x.Reset() }, true, StatusClientGone, "", holdstate.OutcomeDisconnected, time.Minute,
		},
		"draining": {
			func(r *rig, _ *extproctest.Exchange) { elapse(time.Second); r.machine.Drain() }, false, 503, "draining", holdstate.OutcomeDraining, time.Second,
		},
		"the wake failed": {
			func(r *rig, _ *extproctest.Exchange) { elapse(time.Second); r.machine.Fail("m", "no room") }, false, 503, "model_waking", holdstate.OutcomeWakeFailed, time.Second,
		},
		"answered by the engine": {
			func(r *rig, _ *extproctest.Exchange) {
				elapse(time.Second)
				r.slots.up(engineA, 1)
				_ = r.engine.call(r.t, 1).respond(429).Close()
			}, false, 429, "", holdstate.OutcomeReleased, time.Second,
		},
		"the engine's error came late": {
			func(r *rig, _ *extproctest.Exchange) {
				elapse(interval + time.Second)
				r.slots.up(engineA, 1)
				_ = r.engine.call(r.t, 1).respond(500).Close()
			}, true, 500, "backend_error", holdstate.OutcomeReleased, interval + time.Second,
		},
		"the client left in the answer": {
			func(r *rig, x *extproctest.Exchange) {
				r.slots.up(engineA, 1)
				r.engine.call(r.t, 1).respond(200)
				elapse(time.Second)
				x.Reset()
			}, true, StatusClientGone, "", holdstate.OutcomeReleased, 0,
		},
		"the wait for a slot took too long": {
			func(r *rig, _ *extproctest.Exchange) { elapse(time.Second); r.slots.up(engineA, 0); elapse(time.Hour) }, false, 504, "request_timeout", holdstate.OutcomeReleased, time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				x := r.ask(r.t, chat(c.stream))
				c.run(r, x)
				elapse(time.Millisecond)
				x.Reset()
				elapse(logWait + time.Millisecond)
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

// requireOutcomes demands that the records say what the metric has counted.
func (r *rig) requireOutcomes(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	onRecord := map[holdstate.Outcome]int{}
	for _, rec := range r.records {
		if rec.Outcome != holdstate.Pending {
			onRecord[rec.Outcome]++
		}
	}
	require.Equal(t, r.outcomes, onRecord)
}

func TestTheOutcomeOfARefusedHoldIsOnRecord(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.decide = func(q *Request) Decision {
			d := r.refuse(q, holdstate.ErrFull)
			d.Outcome = holdstate.OutcomeFull
			return d
		}
		require.ErrorIs(r.t, r.ask(r.t, chat(false)).End(), io.EOF)
		elapse(logWait + time.Second)
		rec := r.only(r.t)
		require.Equal(r.t, []any{VerdictRefuse, holdstate.OutcomeFull}, []any{rec.Verdict, rec.Outcome})
	})
}

// Envoy's record may arrive before the stream of a request that it carries has ended.
func TestTheHoldOfANativeAnswerIsOnRecord(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s1"))
		elapse(time.Minute)
		r.slots.up(engineA, 1)
		require.Contains(t, x.Events()[0], "serve on")
		r.onLogEntry(&wire.LogEntry{StreamID: "s1", Native: true, Status: 200})
		rec := r.only(t)
		require.Equal(t, VerdictHold, rec.Verdict)
		require.Equal(t, holdstate.OutcomeReleased, rec.Outcome)
		require.Equal(t, time.Minute, rec.Held)
		require.Equal(t, 200, rec.Status)
		r.requireOutcomes(t)
		x.Reset()
	}, silent)
}

// A client may leave in the moment in which Envoy takes the request over.
func TestARecordThatComesWithTheSlotIsComplete(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		fl := r.flights.start(nil, "s1", "")
		g, _ := r.slots.Take(nil)
		fl.note(func(rec *Record) { rec.Verdict = VerdictRefuse })
		require.True(t, fl.carry(g))
		r.onLogEntry(&wire.LogEntry{StreamID: "s1", Left: true})
		rec := r.only(t)
		require.Equal(t, VerdictServe, rec.Verdict)
		require.Equal(t, g, rec.Grant)
		require.Equal(t, StatusClientGone, rec.Status)
	})
}

// The metric counts a request once, by its first outcome, and both waits.
func TestARequestThatIsHeldAgainHasItsFirstOutcomeOnRecord(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		counted := false
		r.decide = func(q *Request) Decision {
			w, err := r.machine.Hold(holdstate.Request{Target: chatOfM, Bytes: q.BodySize, Seq: q.Seq, Counted: counted, Claim: r.slots})
			require.NoError(t, err)
			counted = true
			return Decision{Waiter: w, Held: true, Budget: budget}
		}
		id := uuid.NewString()
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id))
		elapse(time.Minute)
		r.slots.up(engineA, 1)
		requireServed(t, x, "1m0s", engineA)
		require.ErrorIs(t, r.again(t, id, engineA, 200).End(), io.EOF)
		elapse(logWait + time.Second)
		rec := r.only(t)
		require.Equal(t, holdstate.OutcomeReleased, rec.Outcome)
		require.Equal(t, "model_waking", rec.ErrorCode)
		require.Equal(t, budget, rec.Held)
		r.requireOutcomes(t)
	}, silent)
}

// A request whose placement was removed is decided anew.
func TestARequestThatIsDecidedAnewHasBothWaitsOnRecord(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(false))
		elapse(time.Minute)
		r.decide = func(q *Request) Decision {
			w, err := r.machine.Hold(holdstate.Request{Target: chatOfM, Bytes: q.BodySize, Seq: q.Seq, Counted: true, Claim: r.slots})
			require.NoError(t, err)
			return Decision{Waiter: w, Held: true, Budget: budget}
		}
		r.machine.Reconcile(func(target.Target) bool { return false })
		r.machine.Reconcile(func(target.Target) bool { return true })
		require.ErrorIs(t, x.End(), io.EOF)
		elapse(logWait + time.Second)
		rec := r.only(t)
		require.Equal(t, holdstate.OutcomeRemoved, rec.Outcome)
		require.Equal(t, budget, rec.Held)
		r.requireOutcomes(t)
	}, silent)
}

// The end of the process waits for its log entrys of what it has answered, and
// writes a line for what Envoy carries on.
func TestTheEndOfTheProcessLosesNoRecord(t *testing.T) {
	t.Parallel()
	for name, recorded := range map[string]bool{"with Envoy's record": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				held := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, envoy.StreamHeader, "s1"))
				elapse(time.Second)
				r.machine.Drain()
				require.ErrorIs(t, held.End(), io.EOF)
				r.slots.up(engineA, 1)
				carried := r.served(t)
				begin := time.Now()
				done := make(chan struct{})
				go func() { defer close(done); r.WaitForLogEntries(t.Context()) }()
				elapse(100 * time.Millisecond)
				if recorded {
					r.onLogEntry(&wire.LogEntry{StreamID: "s1", Local: true, Status: 503})
				}
				<-done
				r.EndLogs()
				r.EndAll()
				r.EndAll()
				require.Equal(t, recorded, time.Since(begin) < time.Second)
				require.LessOrEqual(t, time.Since(begin), logWait)
				require.Len(t, r.records, 2)
				first, second := r.records[0], r.records[1]
				if first.Request.ID == carried {
					first, second = second, first
				}
				require.Equal(t, []any{503, "draining", holdstate.OutcomeDraining}, []any{first.Status, first.ErrorCode, first.Outcome})
				require.Equal(t, recorded, first.WireStatus == 503)
				require.Equal(t, []any{0, CodeRecordLost}, []any{second.Status, second.ErrorCode})
			})
		})
	}
}

// The shutdown cuts what has not ended by the drain timeout: those clients did not leave.
func TestARequestThatTheShutdownCutsDidNotLeave(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(r *rig) *extproctest.Exchange{
		"in its upload": func(r *rig) *extproctest.Exchange {
			x := r.open(r.t, envoy.LaneEdge)
			x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath, "content-length", "900"), extproctest.RequestBody(" ", false))
			return x
		},
		"in its relayed answer": func(r *rig) *extproctest.Exchange {
			x := r.ask(r.t, chat(true))
			r.slots.up(engineA, 1)
			_, _ = io.WriteString(r.engine.call(r.t, 1).respond(200), "data: 1\n\n")
			return x
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				x := begin(r)
				elapse(time.Second)
				r.EndLogs()
				x.Reset()
				synctest.Wait()
				r.EndAll()
				rec := r.only(r.t)
				require.Equal(r.t, []any{503, "draining"}, []any{rec.Status, rec.ErrorCode})
			})
		})
	}
}

// A request that was held stays one when its replica dies and the lane cannot go on.
func TestAHeldRequestThatTheReholdLaneRefusesIsOnRecordAsHeld(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		id := uuid.NewString()
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerKeepalive, "off", headerRequestID, id))
		elapse(time.Second)
		r.slots.up(engineA, 1)
		require.ErrorIs(t, x.End(), io.EOF)
		r.decide = func(*Request) Decision { return Decision{Refusal: refusal.BackendError("m")} }
		require.ErrorIs(t, r.again(t, id, engineA, 100).End(), io.EOF)
		elapse(logWait + time.Second)
		rec := r.only(t)
		require.Equal(t, []any{VerdictHold, holdstate.OutcomeReleased, 502}, []any{rec.Verdict, rec.Outcome, rec.Status})
	})
}

func TestTraceIDsAreReadFromTraceparent(t *testing.T) {
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
