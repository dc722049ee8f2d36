// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

const (
	comment      = `": keep-alive\n"`
	ping         = `": keep-alive\nevent: ping\ndata: {\"type\": \"ping\"}\n\n"`
	space        = `" "`
	messagesPath = "/v1/messages"
	wakingObject = `"code":"model_waking","message":"model m is waking up; retry in 30 seconds","source":"router","retry_after":30}`
)

// keptAlive is a committed head and a keepalive each interval up to the last.
func keptAlive(form string, every, last time.Duration) []string {
	out := []string{every.String() + " head 200"}
	for at := every; at <= last; at += every {
		out = append(out, at.String()+" "+form)
	}
	return out
}

func aborting(o *Options) { o.LateError = LateErrorAbort }

func silent(o *Options) { o.Keepalive = 0 }

// holding makes every request wait for at most d.
func (r *rig) holding(d time.Duration) {
	r.decide = func(q *Request) Decision {
		w, err := r.machine.Hold(holdstate.Request{Target: chatOfM, Bytes: q.BodySize, Seq: q.Seq, Claim: r.slots})
		if err != nil {
			return r.refuse(q, err)
		}
		return Decision{Waiter: w, Held: true, Budget: d}
	}
}

func TestAHoldThatExpiresIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send []*extprocv3.ProcessingRequest
		form string
		late string
	}{
		"chat, streaming":     {chat(true), comment, "data: {\"error\":{" + wakingObject + "}\n\n"},
		"chat, not streaming": {chat(false), space, `{"error":{` + wakingObject + `}`},
		"completions":         {extproctest.Request("/v1/completions", `{"model":"m","stream":true}`), comment, "data: {\"error\":{" + wakingObject + "}\n\n"},
		"messages, streaming": {
			extproctest.Request(messagesPath, `{"model":"m","stream":true}`), ping,
			"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"," + strings.Replace(wakingObject, "model m", "model_waking: model m", 1) + "}\n\n",
		},
		"messages, not streaming": {
			extproctest.Request(messagesPath, `{"model":"m"}`), space,
			`{"type":"error","error":{"type":"overloaded_error",` + wakingObject + `}`,
		},
		"responses, streaming": {
			extproctest.Request("/v1/responses", `{"model":"m","stream":true}`), comment,
			"event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,\"code\":\"model_waking\",\"message\":\"model m is waking up; retry in 30 seconds\",\"param\":null,\"error\":{" + wakingObject + "}\n\n" +
				"event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"object\":\"response\",\"status\":\"failed\",\"error\":{\"code\":\"model_waking\",\"message\":\"model m is waking up; retry in 30 seconds\"}}}\n\n",
		},
		"responses, not streaming": {extproctest.Request("/v1/responses", `{"model":"m"}`), space, `{"error":{` + wakingObject + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := keptAlive(c.form, interval, 90*time.Second)
			bubble(t, func(r *rig) {
				t := r.t
				r.holding(100 * time.Second)
				x := r.ask(t, c.send)
				x.RequireEnded(t, append(kept, fmt.Sprintf("1m40s %q end", c.late))...)
				require.Equal(t, 1, r.outcome(holdstate.OutcomeExpired))
			})
			bubble(t, func(r *rig) {
				t := r.t
				r.holding(100 * time.Second)
				x := r.ask(t, c.send)
				require.Equal(t, codes.Aborted, status.Code(x.End()), "an error cuts the answer")
				require.Equal(t, append(kept, fmt.Sprintf("1m40s %q", c.late)), x.Events(), "and says why before")
				require.Equal(t, 100*time.Second, time.Since(x.Begin))
			}, aborting)
			bubble(t, func(r *rig) {
				t := r.t
				r.holding(100 * time.Second)
				x := r.ask(t, c.send)
				require.ErrorIs(t, x.End(), io.EOF)
				require.Len(t, x.Events(), 1)
				require.True(t, strings.HasPrefix(x.Events()[0], "1m40s 503 {"), "nothing was sent before: the status is the real one")
			}, silent, aborting)
		})
	}
}

func TestTheBudgetIsTheOnlyClockOfAHold(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) { // one second before
		t := r.t
		x := r.ask(t, chat(false))
		elapse(budget - time.Second)
		r.slots.up(engineA, 1)
		require.Equal(t, "4m59s serve on "+engineA+", 28 bytes", x.Events()[0])
		require.Equal(t, 1, r.outcome(holdstate.OutcomeReleased))
		x.Reset()
		require.Equal(t, 1, r.endAllNow())
	}, silent)
	bubble(t, func(r *rig) { // one second after
		t := r.t
		x := r.ask(t, chat(false))
		elapse(budget + time.Second)
		r.slots.up(engineA, 1)
		x.RequireEnded(t, `5m0s 503 {"error":{`+wakingObject+`}`)
		require.Equal(t, 1, r.outcome(holdstate.OutcomeExpired))
	}, silent)
}

// endAllNow ends what Envoy carries, as if it had gone.
func (r *rig) endAllNow() int {
	elapse(time.Nanosecond)
	old := r.flights.carried("pid 9", time.Now())
	for _, fl := range old {
		r.end(fl)
	}
	return len(old)
}

func TestTheBudgetRunsFromArrival(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.open(t, "edge")
		m := chat(false)
		x.Send(m[0])
		elapse(time.Minute) // a slow upload
		x.Send(m[1])
		x.RequireEnded(t, `5m0s 503 {"error":{`+wakingObject+`}`)
	}, silent)
}

func TestAHoldMayLastAnHour(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.holding(time.Hour)
		x := r.ask(t, chat(true))
		require.ErrorIs(t, x.End(), io.EOF)
		got := x.Events()
		require.Equal(t, keptAlive(comment, 7*time.Second, 3598*time.Second), got[:len(got)-1])
		require.True(t, strings.HasPrefix(got[len(got)-1], "1h0m0s "))
	}, func(o *Options) { o.Keepalive = 7 * time.Second })
}

func TestAnEngineThatRefusesCostsOnlyTime(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"UF", "UF,URX", "UH", "UO", "NC"} {
		bubble(t, func(r *rig) {
			t := r.t
			first := r.ask(t, chat(false))
			second := r.ask(t, chat(false))
			r.slots.up(engineA, 1)
			call := r.engine.call(t, 1)
			call.fail(flags)
			elapse(time.Second)
			require.Equal(t, []string{engineA + " refused the connection"}, r.slots.failures())
			require.Equal(t, 2, r.machine.Demand(chatOfM.Model), "both are held again")
			for i := range 4 { // it may happen as often as it likes
				r.slots.up(engineB, 1)
				r.engine.call(t, 2+i).fail(flags)
				elapse(time.Second)
			}
			r.slots.up(engineB, 1)
			call = r.engine.call(t, 6)
			body := call.respond(200)
			_ = body.Close()
			first.RequireEnded(t, "5s head 200", `5s "" end`)
			require.Empty(t, second.Events(), "the first kept its place")
			body = r.engine.call(t, 7).respond(200)
			_ = body.Close()
			second.RequireEnded(t, "5s head 200", `5s "" end`)
			require.Equal(t, 2, r.routedNow(), "counted once")
			require.Equal(t, 2, r.outcome(holdstate.OutcomeReleased), "one outcome each")
		})
	}
}

func TestTwoEnginesThatDieEndARequest(t *testing.T) {
	t.Parallel()
	const object = `"code":"backend_error","message":"the engines of model m ended the connection before they answered","source":"router"}}`
	die := func(r *rig, n int) {
		t := r.t
		t.Helper()
		call := r.engine.call(t, n)
		call.fail([]string{"UC", "UR"}[n%2])
		elapse(time.Second)
	}
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(true))
		r.slots.up(engineA, 1)
		die(r, 1)
		require.Empty(t, x.Events(), "the first costs time")
		r.slots.up(engineB, 1)
		r.engine.call(t, 2).fail("UF") // and does not count when it refused
		elapse(time.Second)
		r.slots.up(engineB, 1)
		r.engine.call(t, 3)
		die(r, 3)
		x.RequireEnded(t, `2s 502 {"error":{`+object)
		require.Len(t, r.slots.failures(), 3)
		require.Equal(t, 1, r.outcome(holdstate.OutcomeReleased))
	})
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(true))
		elapse(20 * time.Second)
		r.slots.up(engineA, 1)
		die(r, 1)
		r.slots.up(engineB, 1)
		die(r, 2)
		x.RequireEnded(t, "15s head 200", "15s "+comment, fmt.Sprintf("21s %q end", `data: {"error":{`+object+"\n\n"))
	})
}

func TestARequestThatDiedTwiceIsCutInAbortMode(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(false))
		elapse(20 * time.Second)
		r.slots.up(engineA, 1)
		r.engine.call(t, 1).fail("UC")
		elapse(time.Second)
		r.slots.up(engineB, 1)
		r.engine.call(t, 2).fail("UC,URX")
		require.Equal(t, codes.Aborted, status.Code(x.End()))
	}, aborting)
}

// What remains of the budget is what counts when the request is held again.
func TestTheBudgetGoesOnWhenARequestIsHeldAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.holding(100 * time.Second)
		x := r.ask(t, chat(false))
		elapse(95 * time.Second)
		r.slots.up(engineA, 0)
		elapse(30 * time.Second) // beyond it: but a slot is what it waits for now
		require.Equal(t, 8, strings.Count(strings.Join(x.Events(), " "), space))
		r.slots.down(engineA)
		require.ErrorIs(t, x.End(), io.EOF)
		got := x.Events()
		require.Equal(t, fmt.Sprintf("2m5s %q end", `{"error":{`+wakingObject+`}`), got[len(got)-1])
		require.Equal(t, 1, r.outcome(holdstate.OutcomeExpired))
	})
}

func TestAWaitForASlotThatTakesTooLongIsRefused(t *testing.T) {
	t.Parallel()
	const timeout = `{"error":{"code":"request_timeout","message":"no replica of model m had a free slot in time","source":"router"}}`
	bubble(t, func(r *rig) { // never held
		t := r.t
		r.slots.up(engineA, 0)
		x := r.ask(t, chat(true))
		x.RequireEnded(t, "1m0s 504 "+timeout)
	})
	bubble(t, func(r *rig) { // held and released
		t := r.t
		x := r.ask(t, chat(false))
		elapse(20 * time.Second)
		r.slots.up(engineA, 0)
		require.ErrorIs(t, x.End(), io.EOF)
		got := x.Events()
		require.Equal(t, fmt.Sprintf("1m20s %q end", timeout), got[len(got)-1])
		require.Equal(t, 1, r.outcome(holdstate.OutcomeReleased))
	})
	bubble(t, func(r *rig) { // a new release gives a new wait
		t := r.t
		x := r.ask(t, chat(false))
		r.slots.up(engineA, 0)
		elapse(50 * time.Second)
		r.slots.down(engineA)
		elapse(30 * time.Second)
		r.slots.up(engineB, 0)
		elapse(50 * time.Second)
		require.NotContains(t, strings.Join(x.Events(), " "), "request_timeout")
		require.ErrorIs(t, x.End(), io.EOF)
		require.Equal(t, 140*time.Second, time.Since(x.Begin))
	})
}

func TestAQueuedRequestIsServedByEnvoy(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 0)
		x := r.ask(t, chat(true))
		elapse(50 * time.Second)
		require.Empty(t, x.Events(), "no keepalive for a request that was not held")
		r.slots.up(engineB, 1)
		require.Equal(t, []string{"50s serve on " + engineB + ", 27 bytes", "50s body 27 end"}, x.Events())
		fields := x.Messages()[0].GetDynamicMetadata().GetFields()["holdgate"].GetStructValue().GetFields()
		require.Equal(t, "hold;dur=0, queue;dur=50000", fields["server_timing"].GetStringValue())
		x.Reset()
		require.Equal(t, 1, r.endAllNow())
	})
}

// A queued request whose last replica leaves is decided anew, and keeps its place
// before those that came after it.
func TestAQueuedRequestIsHeldWhenTheLastReplicaLeaves(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 0)
		var all []*extproctest.Exchange
		for i := range 10 {
			all = append(all, r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, "x-n", strconv.Itoa(i))))
		}
		r.slots.down(engineA)
		synctest.Wait()
		require.Equal(t, len(all), r.machine.Demand(chatOfM.Model))
		r.slots.up(engineB, 1)
		for i, x := range all {
			call := r.engine.call(t, i+1)
			require.Equal(t, strconv.Itoa(i), call.Header.Get("X-N"))
			_ = call.respond(200).Close()
			x.RequireEnded(t, "0s head 200", `0s "" end`)
		}
	})
}

func TestWhatEndsAHold(t *testing.T) {
	t.Parallel()
	const (
		failed   = `{"error":{"code":"model_waking","message":"model m could not be woken: \"no\" GPU; retry in 30 seconds","source":"router","retry_after":30}}`
		draining = `{"error":{"code":"draining","message":"this router is shutting down; retry in 1 second","source":"router","retry_after":1}}`
		removed  = `{"error":{"code":"model_not_found","message":"model m does not exist here","source":"router"}}`
	)
	for name, c := range map[string]struct {
		end     func(r *rig)
		answer  string
		outcome holdstate.Outcome
	}{
		"wake failed": {func(r *rig) { r.machine.Fail("m", `"no" GPU`) }, "503 " + failed, holdstate.OutcomeWakeFailed},
		"draining":    {func(r *rig) { r.machine.EndAll() }, "503 " + draining, holdstate.OutcomeDraining},
		"removed": {func(r *rig) {
			r.decide = func(q *Request) Decision { return Decision{Refusal: refusal.ModelNotFound(q.Model)} }
			r.machine.Reconcile(func(target.Target) bool { return false })
		}, "404 " + removed, holdstate.OutcomeRemoved},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(false))
				c.end(r)
				x.RequireEnded(t, "0s "+c.answer)
				require.Equal(t, 1, r.outcome(c.outcome))
			})
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(false))
				elapse(20 * time.Second)
				c.end(r)
				x.RequireEnded(t, "15s head 200", "15s "+space, fmt.Sprintf("20s %q end", c.answer[4:]))
				require.Equal(t, 1, r.outcome(c.outcome))
			})
		})
	}
}

// A drain ends holds that were sent nothing. The others are served here when a replica comes, or
// end with a late error when the drain times out.
func TestADrainEndsOnlyHoldsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	const draining = `{"error":{"code":"draining","message":"this router is shutting down; retry in 1 second","source":"router","retry_after":1}}`
	bubble(t, func(r *rig) {
		t := r.t
		begun := r.ask(t, chat(false))
		off := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerKeepalive, "off"))
		elapse(10 * time.Second)
		quiet := r.ask(t, chat(false))
		elapse(10 * time.Second)
		r.machine.Drain()
		quiet.RequireEnded(t, "10s 503 "+draining)
		off.RequireEnded(t, "20s 503 "+draining)
		r.ask(t, chat(false)).RequireEnded(t, "0s 503 "+draining)
		require.Equal(t, 1, r.machine.Demand(chatOfM.Model))
		elapse(5 * time.Second)
		r.slots.up(engineA, 1)
		answer := r.engine.call(t, 1).respond(200)
		_, _ = io.WriteString(answer, "{}")
		_ = answer.Close()
		begun.RequireEnded(t, "15s head 200", "15s "+space, `25s "{}"`, `25s "" end`)
	})
}

func TestHoldsAreWaitedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(false))
		begin := time.Now()
		go func() {
			<-time.After(10 * time.Second)
			r.machine.Drain()
		}()
		r.WaitForHolds(t.Context())
		require.InDelta(t, 10, time.Since(begin).Seconds(), 0.02)
		require.ErrorIs(t, x.End(), io.EOF)
	})
}
