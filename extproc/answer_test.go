// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

func TestKeepalivesHaveTheFormOfTheAPI(t *testing.T) {
	t.Parallel()
	const comment = ": keep-alive\n"
	require.Equal(t, comment, string(keepaliveForm(refusal.OpenAI, true)))
	require.Equal(t, comment, string(keepaliveForm(refusal.Responses, true)))
	require.Equal(t, comment+"event: ping\ndata: {\"type\": \"ping\"}\n\n", string(keepaliveForm(refusal.Anthropic, true)))
	for _, api := range []refusal.API{refusal.OpenAI, refusal.Anthropic, refusal.Responses} {
		require.Equal(t, " ", string(keepaliveForm(api, false)))
	}
}

func TestTheFirstKeepaliveSendsTheHead(t *testing.T) {
	t.Parallel()
	for stream, contentType := range map[bool]string{true: "text/event-stream; charset=utf-8", false: "application/json"} {
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, chat(stream))
			elapse(interval)
			headers := map[string]string{}
			for _, h := range x.Messages()[0].GetStreamedImmediateResponse().GetHeadersResponse().GetHeaders().GetHeaders() {
				headers[h.GetKey()] = string(h.GetRawValue())
			}
			require.Equal(t, map[string]string{
				headerRequestID: idOf(x),
				":status":       "200", "content-type": contentType, "cache-control": "no-cache", "x-accel-buffering": "no",
			}, headers)
			x.Reset()
		})
	}
}

// A release, a wait for a slot and a slow engine leave no gap between keepalives.
func TestTheKeepaliveClockRunsThroughARelease(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(true))
		elapse(20 * time.Second)
		r.slots.up(engineA, 0)
		require.Equal(t, 1, r.machine.Demand(chatOfM.Model), "released, but without a slot")
		elapse(20 * time.Second)
		r.slots.up(engineB, 1)
		require.Zero(t, r.machine.Demand(chatOfM.Model))
		call := r.engine.call(t, 1)
		elapse(22 * time.Second)
		body := call.respond(200)
		elapse(30 * time.Second) // the head was received, but no byte of the body
		go func() { _, _ = io.WriteString(body, "data: 1\n\n"); elapse(time.Hour); _ = body.Close() }()
		x.RequireEnded(t, append(keptAlive(comment, interval, 90*time.Second), `1m32s "data: 1\n\n"`, `1h1m32s "" end`)...)
	})
}

func TestAHeadBeforeTheFirstKeepaliveIsTheEnginesOwn(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(true))
		elapse(14 * time.Second)
		r.slots.up(engineA, 1)
		elapse(500 * time.Millisecond)
		body := r.engine.call(t, 1).respond(418, "X-Engine", "a", "X-Engine", "b", "Server-Timing", "gpu;dur=1", "X-Request-Id", "engine's", "X-Holdgate-Secret", "x", "Connection", "close", "Content-Length", "2")
		elapse(time.Minute)
		_, _ = io.WriteString(body, "no")
		_ = body.Close()
		x.RequireEnded(t, `14.5s head 418`, `1m14.5s "no"`, `1m14.5s "" end`)
		headers := map[string][]string{}
		for _, h := range x.Messages()[0].GetStreamedImmediateResponse().GetHeadersResponse().GetHeaders().GetHeaders() {
			headers[h.GetKey()] = append(headers[h.GetKey()], string(h.GetRawValue()))
		}
		require.Equal(t, map[string][]string{
			":status": {"418"}, headerRequestID: {idOf(x)}, "x-engine": {"a, b"}, "content-length": {"2"},
			"server-timing": {"gpu;dur=1, hold;dur=14000, queue;dur=0"},
		}, headers)
	})
}

// The engine is healthy again at once, but the request leaves it alone for a while.
func TestKeepalivesGoOnWhileAReplicaIsLeftAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(false))
		elapse(14900 * time.Millisecond)
		r.slots.up(engineA, 1)
		for n, pause := range []time.Duration{500 * time.Millisecond, time.Second} {
			r.slots.pauseFor(pause)
			r.engine.call(t, 1+n).fail("UC")
			synctest.Wait()
			r.slots.up(engineA, 1)
			elapse(pause - time.Millisecond)
			r.engine.call(t, 1+n)
			elapse(time.Millisecond)
		}
		_ = r.engine.call(t, 3).respond(200).Close()
		x.RequireEnded(t, "15s head 200", "15s "+space, `16.4s "" end`)
		require.Equal(t, 1, r.outcome(holdstate.OutcomeReleased))
	})
	bubble(t, func(r *rig) { // the third death of the same engine ends the request
		t := r.t
		x := r.ask(t, chat(true))
		for n := range 3 {
			r.slots.up(engineA, 1)
			r.engine.call(t, 1+n).fail("UC")
			synctest.Wait()
		}
		x.RequireEnded(t, bothDied)
	})
}

func TestACallerMayTurnKeepalivesOff(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m","stream":true}`, "x-wake-keepalive", "OFF"))
		elapse(time.Minute)
		r.slots.up(engineA, 1)
		require.Equal(t, []string{"1m0s serve on " + engineA + ", 27 bytes", "1m0s body 27 end"}, x.Events())
		require.True(t, r.noBodies())
		x.Reset()
		require.Equal(t, 1, r.endAllNow())
	})
}
