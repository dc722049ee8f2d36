// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
)

// A release, a keepalive and a client that leaves coincide, a thousand times: each answer is
// whole, without a keepalive inside or after it, and each request has one outcome.
func TestAReleaseRacesATickAndADisconnect(t *testing.T) {
	t.Parallel()
	const rounds, requests = 10, 100
	bubble(t, func(r *rig) {
		t := r.t
		r.engine.script = func(c *call) {
			body := c.respond(200)
			go func() {
				_, _ = io.WriteString(body, "data: one\n\n")
				_, _ = io.WriteString(body, "data: two\n\n")
				_ = body.Close()
			}()
		}
		for range rounds {
			all := make([]*extproctest.Exchange, requests)
			for i := range all {
				all[i] = r.open(t, "edge")
				all[i].Send(chat(true)...)
				if i%3 == 0 {
					time.AfterFunc(interval, func() { leavings[[]string{"reset", "half-close"}[i%2]](all[i]) })
				}
			}
			time.AfterFunc(interval, func() { r.slots.up(engineA, requests) })
			synctest.Wait()
			require.Equal(t, requests, r.machine.Demand(chatOfM.Model))
			elapse(interval)
			r.slots.down(engineA)
			for i, x := range all {
				err := x.End()
				if i%3 != 0 {
					require.ErrorIs(t, err, io.EOF)
				}
				requireFenced(t, x.Events(), i%3 != 0)
			}
		}
		require.Empty(t, r.slots.failures())
		total := 0
		for _, o := range holdstate.Outcomes() {
			total += r.outcome(o)
		}
		require.Equal(t, rounds*requests, total)
		require.Equal(t, total, r.outcome(holdstate.OutcomeReleased)+r.outcome(holdstate.OutcomeDisconnected))
	}, func(o *Options) { o.MaxBodyBytesTotal = maxTotal })
}

// requireFenced requires that no keepalive is sent once the answer has begun.
func requireFenced(t *testing.T, events []string, whole bool) {
	t.Helper()
	text := strings.Join(events, " ")
	require.LessOrEqual(t, strings.Count(text, " head "), 1, text)
	if at := strings.Index(text, "data:"); at >= 0 {
		require.NotContains(t, text[at:], "keep-alive")
	}
	if whole {
		require.Equal(t, 1, strings.Count(text, "data: one"), text)
		require.Equal(t, 1, strings.Count(text, "data: two"), text)
		require.Less(t, strings.Index(text, "data: one"), strings.Index(text, "data: two"))
		require.True(t, strings.HasSuffix(text, " end"), text)
	}
}

// A timer may fire while the machine changes the state that it is for. The machine decides,
// and the request must not be left without a timer.
func TestTheBudgetEndsInTheInstantOfARelease(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		for range 20 {
			r.holding(time.Minute)
			x := r.ask(t, chat(false))
			elapse(time.Minute - time.Millisecond)
			r.slots.before = func() { <-time.After(time.Millisecond) } // under the machine's lock
			r.slots.up(engineA, 0)
			elapse(time.Second)
			require.Empty(t, x.Events(), "it was released")
			r.slots.down(engineA)
			synctest.Wait()
			require.Len(t, x.Events(), 1, "held again, it has no time left")
			require.Contains(t, x.Events()[0], "503")
			require.ErrorIs(t, x.End(), io.EOF)
		}
	}, silent)
}

func TestAWaitForASlotRacesANewRelease(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		for range 20 {
			r.holding(time.Hour)
			r.slots.up(engineA, 0)
			var all []*extproctest.Exchange
			for range 50 {
				all = append(all, r.ask(t, chat(false)))
			}
			elapse(time.Minute - time.Millisecond)
			r.slots.before = func() { <-time.After(time.Millisecond) } // under the machine's lock
			r.slots.down(engineA)
			r.slots.up(engineB, 0)
			elapse(3 * time.Minute)
			for _, x := range all {
				require.Len(t, x.Events(), 1, "the new wait has a clock too")
				require.Contains(t, x.Events()[0], "504")
				require.ErrorIs(t, x.End(), io.EOF)
			}
			r.slots.down(engineB)
		}
	}, silent)
}

// A thousand held requests, one registration: a thousand answers, in the order of
// arrival, none lost and none twice.
func TestOneRegistrationReleasesAThousandRequests(t *testing.T) {
	t.Parallel()
	const requests = 1000
	bubble(t, func(r *rig) {
		t := r.t
		r.engine.script = func(c *call) { _ = c.respond(200).Close() }
		var all []*extproctest.Exchange
		for range requests {
			x := r.open(t, "edge")
			x.Send(chat(false)...)
			all = append(all, x)
		}
		synctest.Wait()
		require.Equal(t, requests, r.machine.Demand(chatOfM.Model))
		r.slots.up(engineA, 4)
		for _, x := range all {
			x.RequireEnded(t, "0s head 200", `0s "" end`)
		}
		r.engine.call(t, requests)
		require.Equal(t, requests, r.outcome(holdstate.OutcomeReleased))
		require.Equal(t, requests, r.routedNow())
	})
}
