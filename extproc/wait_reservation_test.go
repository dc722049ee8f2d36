// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/holdstate"
)

const atCapacity = `"code":"model_waking","message":"model m woke up but is still at capacity; retry in 30 seconds","source":"router","retry_after":30}`

// quoted is s as it stands inside a quoted text.
func quoted(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

func TestAReleasedRequestWaitsForRoomUntilItsBudgetEnds(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.shutGate(true, nil)
		x := r.ask(t, chat(true))
		elapse(40 * time.Second)
		r.slots.up(engineA, 1)
		// No keepalive is missing, and --request-timeout does not count here.
		x.RequireEnded(t, append(keptAlive(comment, 7*time.Second, 294*time.Second), `5m0s "data: {\"error\":{`+quoted(atCapacity)+`}\n\n" end`)...)
		require.Equal(t, 1, r.outcome(holdstate.OutcomeReleased), "it was woken in time")
		r.slots.down(engineA)
	}, func(o *Options) { o.Keepalive = 7 * time.Second })
}

func TestTheBudgetEndsTheWaitForRoomPlainlyWithoutKeepalives(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.shutGate(true, nil)
		x := r.ask(t, chat(false))
		r.slots.up(engineA, 1)
		x.RequireEnded(t, `5m0s 503 {"error":{`+atCapacity+`}`)
		r.slots.down(engineA)
	}, silent)
}

func TestTheWaitForASlotBeginsWithTheRoom(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.shutGate(true, nil)
		x := r.ask(t, chat(false))
		r.slots.up(engineA, 0)
		elapse(2 * time.Minute)
		r.slots.shutGate(false, nil)
		x.RequireEnded(t, `3m0s 504 {"error":{"code":"request_timeout","message":"no replica of model m had a free slot in time","source":"router"}}`)
		r.slots.down(engineA)
	}, silent)
}

func TestARequestThatIsNotHeldWaitsForAReservation(t *testing.T) {
	t.Parallel()
	const full = ` 429 {"error":{"code":"concurrency_limit_exceeded","message":"model m has as many requests in hand as it may; retry in 1 second","source":"router","retry_after":1}}`
	for name, c := range map[string]struct {
		park time.Duration
		want string
	}{
		"for as long as it is told": {250 * time.Millisecond, "250ms" + full},
		"not at all":                {0, "0s" + full},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.slots.up(engineA, 1)
				r.slots.shutGate(true, nil)
				r.ask(t, chat(false)).RequireEnded(t, c.want)
				r.slots.down(engineA)
			}, func(o *Options) { o.AdmitPark = c.park })
		})
	}
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		r.slots.shutGate(true, nil)
		x := r.ask(t, chat(false))
		elapse(200 * time.Millisecond)
		r.slots.shutGate(false, nil)
		require.Len(t, x.Events(), 2, "room in time: it is served")
		x.Reset()
		require.Equal(t, 1, r.endAllNow())
		r.slots.down(engineA)
	})
}

// TestRoomInTheLastMomentCounts frees room just when the time to wait for it ends.
func TestRoomInTheLastMomentCounts(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		for range 50 {
			r.slots.up(engineA, 0)
			r.slots.shutGate(true, nil)
			x := r.ask(t, chat(false))
			<-time.After(250 * time.Millisecond) // not pass: what follows happens at the same time
			r.slots.shutGate(false, nil)
			elapse(time.Minute)
			require.Len(t, x.Events(), 1)
			require.NotContains(t, x.Events()[0], "250ms 504", "it has waited for a slot for no time")
			r.slots.down(engineA)
		}
	})
}

func TestWhatCanNeverHaveRoomEndsAtTheRelease(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.shutGate(false, holdstate.ErrTooLarge)
		early, late := r.ask(t, chat(false)), r.ask(t, chat(true))
		elapse(20 * time.Second)
		quick := r.ask(t, chat(false))
		elapse(time.Second)
		r.slots.up(engineA, 1)
		const tooLarge = `"code":"concurrency_limit_exceeded","message":"the request is larger than what the replicas of model m may have in hand: make it shorter, or ask for less output","source":"router","retry_after":1}`
		early.RequireEnded(t, "15s head 200", `15s " "`, `21s "{\"error\":{`+quoted(tooLarge)+`}" end`)
		late.RequireEnded(t, "15s head 200", `15s ": keep-alive\n"`, `21s "data: {\"error\":{`+quoted(tooLarge)+`}\n\n" end`)
		quick.RequireEnded(t, `1s 429 {"error":{`+tooLarge+`}`)
		r.slots.down(engineA)
	})
}

// TestARelayThatComesBackWaitsForRoomAgain without a gap between keepalives.
func TestARelayThatComesBackWaitsForRoomAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(true))
		r.slots.up(engineA, 1)
		call := r.engine.call(t, 1)
		r.slots.shutGate(true, nil)
		elapse(20 * time.Second)
		call.fail("UF")
		r.slots.up(engineB, 1)
		elapse(20 * time.Second)
		r.slots.shutGate(false, nil)
		body := r.engine.call(t, 2).respond(200)
		_, _ = io.WriteString(body, "data: 1\n\n")
		_ = body.Close()
		x.RequireEnded(t, append(keptAlive(comment, interval, 30*time.Second), `40s "data: 1\n\n"`, `40s "" end`)...)
	})
}
