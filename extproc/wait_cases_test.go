// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
)

// From the release on no timer of the router runs but that of the keepalives: an engine
// may take any time for its head, and then for its first byte.
func TestNothingCutsASlowEngineAfterARelease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ head, first time.Duration }{
		"30 s to the head":       {30 * time.Second, 0},
		"30 s to the first byte": {0, 30 * time.Second},
		"hours":                  {3 * time.Hour, 3 * time.Hour},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stream %t", name, stream), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					t := r.t
					r.holding(30 * time.Second)
					x := r.ask(t, chat(stream))
					elapse(29 * time.Second)
					r.slots.up(engineA, 1)
					call := r.engine.call(t, 1)
					elapse(c.head)
					body := call.respond(200)
					elapse(c.first)
					_, _ = io.WriteString(body, "late")
					_ = body.Close()
					at := 29*time.Second + c.head
					x.RequireEnded(t, fmt.Sprintf("%v head 200", at), fmt.Sprintf("%v %q", at+c.first, "late"), fmt.Sprintf("%v %q end", at+c.first, ""))
				}, func(o *Options) { o.Keepalive, o.RequestTimeout = 100*time.Hour, time.Second })
			})
		}
	}
}

// The way from a registration to the engine has no timer in it, whatever the
// settings are.
func TestAReleaseTakesNoTimeWhateverTheSettings(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"as usual":               func(*Options) {},
		"long waits for a slot":  func(o *Options) { o.RequestTimeout = time.Hour },
		"short waits for a slot": func(o *Options) { o.RequestTimeout = time.Millisecond },
		"rare keepalives":        func(o *Options) { o.Keepalive = time.Hour },
		"frequent keepalives":    func(o *Options) { o.Keepalive = 500 * time.Millisecond },
		"late errors cut":        aborting,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(true))
				elapse(100*time.Second + time.Millisecond)
				at := time.Now()
				r.slots.up(engineA, 1)
				_ = r.engine.call(t, 1).respond(200).Close()
				require.ErrorIs(t, x.End(), io.EOF)
				require.Equal(t, at, time.Now())
			}, change)
		})
	}
}

// When a stream ends whose request Envoy carries, the client has not left, however the
// stream ends.
func TestAStreamThatHasDoneItsWorkIsNoDisconnect(t *testing.T) {
	t.Parallel()
	for way, leave := range leavings {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				held := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerKeepalive, "off"))
				r.slots.up(engineA, 2)
				warm := r.ask(t, chat(false))
				for _, x := range []*extproctest.Exchange{held, warm} {
					require.Contains(t, x.Events()[0], "serve on ")
					leave(x)
				}
				synctest.Wait()
				require.Equal(t, 1, r.outcome(holdstate.OutcomeReleased))
				require.Zero(t, r.outcome(holdstate.OutcomeDisconnected))
				require.Equal(t, 2, r.endAllNow())
				r.mu.Lock()
				defer r.mu.Unlock()
				require.Len(t, r.records, 2)
				for _, rec := range r.records {
					require.NotEqual(t, StatusClientGone, rec.Status)
				}
			})
		})
	}
}

// A client that leaves during its upload is on record as one that left, and not as an
// error.
func TestAClientThatLeavesInItsUploadIsNoFault(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string][]*extprocv3.ProcessingRequest{
		"headers": {extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath)},
		"a part":  {extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath), extproctest.RequestBody(`{"model":"m`, false)},
		"no end":  {extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath), extproctest.RequestBody(`{"model":"m"}`, false)},
	} {
		for way, leave := range leavings {
			t.Run(name+", "+way, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					t := r.t
					x := r.open(t, envoy.LaneEdge)
					x.Send(begin...)
					synctest.Wait()
					leave(x)
					elapse(logWait)
					rec := r.only(t)
					require.Equal(t, StatusClientGone, rec.Status)
					require.Empty(t, rec.ErrorCode)
					require.Empty(t, x.Events(), "nobody is there to be told")
				})
			})
		}
	}
}

// An engine's empty error is passed as it is; behind a keepalive a client that does
// not stream gets nothing after the spaces, and one that streams is told.
func TestAnEmptyErrorOfAnEngineBehindKeepalivesGetsAText(t *testing.T) {
	t.Parallel()
	answer := func(r *rig, stream bool, after time.Duration) *extproctest.Exchange {
		t := r.t
		t.Helper()
		x := r.ask(t, chat(stream))
		elapse(after)
		r.slots.up(engineA, 1)
		_ = r.engine.call(t, 1).respond(400).Close()
		return x
	}
	for _, stream := range []bool{true, false} {
		bubble(t, func(r *rig) {
			answer(r, stream, time.Second).RequireEnded(r.t, "1s head 400", `1s "" end`)
		})
	}
	bubble(t, func(r *rig) {
		answer(r, false, interval).RequireEnded(r.t, "15s head 200", "15s "+space, `15s "" end`)
	})
	bubble(t, func(r *rig) {
		want := `data: {"error":{"code":"backend_error","message":"the engine answered with status 400","source":"engine"}}` + "\n\n"
		answer(r, true, interval).RequireEnded(r.t, "15s head 200", "15s "+comment, fmt.Sprintf("15s %q end", want))
	})
}

// 680 clients that leave together are gone from every count in the same instant,
// and so is what their bodies took.
func TestACrowdThatLeavesIsGoneInTheSameInstant(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		const crowd = 680
		body := `{"model":"m","x":"` + strings.Repeat("x", 5000) + `"}`
		var all []*extproctest.Exchange
		for range crowd {
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.Request(chatPath, body)...)
			all = append(all, x)
		}
		synctest.Wait()
		require.Equal(t, crowd, r.machine.Demand(chatOfM.Model))
		require.False(t, r.noBodies(), "their bodies count")
		elapse(20 * time.Second)
		at := time.Now()
		for _, x := range all {
			x.Reset()
		}
		synctest.Wait()
		require.Equal(t, at, time.Now())
		require.Equal(t, crowd, r.outcome(holdstate.OutcomeDisconnected))
		r.requireAtRest(t)
	})
}
