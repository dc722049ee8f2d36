// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// off switches keepalives off: then no relay is needed, which a bubble does not have.
var off = []string{"x-wake-keepalive", "off"}

// The metric has the demand at once when the request has arrived, before anything is sent.
func TestTheDemandIsOnTheMetricInTheSameInstant(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		require.Zero(r.t, r.demand("m"))
		require.Zero(r.t, r.wanted("m"))
		at := time.Now()
		a := r.chat("m")
		require.Equal(r.t, 1, r.demand("m"))
		require.Equal(r.t, 1, r.wanted("m"))
		require.Empty(r.t, a.all())
		a.gone()
		require.Zero(r.t, r.demand("m"), "gone in the instant in which the client has left")
		require.Equal(r.t, 1, r.holds("disconnected"))
		require.Equal(r.t, at, time.Now())
	})
}

// Only the budget of the placement ends a hold: a wake a second before its end is in time,
// one a second after it is not.
func TestTheBudgetOfAPlacementToTheSecond(t *testing.T) {
	t.Parallel()
	for model, budget := range map[string]time.Duration{"m": 5 * time.Minute, "hour": time.Hour, "half": 30 * time.Second} {
		bubble(t, func(r *rig) {
			a := r.chat(model, off...)
			pass(budget - time.Second)
			require.Empty(r.t, a.all())
			require.Equal(r.t, 1, r.demand(model))
			p := r.join(pb.State_STATE_SERVING, model)
			require.Equal(r.t, fmt.Sprintf("%v serve on 127.0.0.1:8000\n%[1]v body", budget-time.Second), a.all())
			require.Equal(r.t, 1, r.holds("released"))
			a.gone()
			p.leave()
			r.envoyEnds()
		})
		bubble(t, func(r *rig) {
			a := r.chat(model, off...)
			pass(budget + time.Second)
			p := r.join(pb.State_STATE_SERVING, model)
			require.Regexp(r.t, fmt.Sprintf(`^%v 503 .*"code":"model_waking"`, budget), a.all())
			require.Equal(r.t, 1, r.holds("expired"))
			require.Zero(r.t, r.holds("released"))
			p.leave()
			synctest.Wait()
		})
	}
}

// With the defaults the first byte comes after 15 s and no gap is longer: proxies
// that cut silent connections after 60, 100 or 300 s never see one.
func TestTheDefaultsKeepProxiesFromCutting(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		a := r.chat("hour")
		want := "15s head"
		for at := 15 * time.Second; at <= 10*time.Minute; at += 15 * time.Second {
			want += fmt.Sprintf("\n%v \" \"", at)
		}
		pass(10*time.Minute + time.Second)
		require.Equal(r.t, want, a.all())
		a.gone()
	})
}

// The patience that a client states shortens the budget and never lengthens it.
func TestAClientsPatienceAgainstTheBudget(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header, value string
		want          time.Duration
	}{
		"ours":             {"x-wake-timeout", "20s", 20 * time.Second},
		"ours, longer":     {"x-wake-timeout", "2h", 30 * time.Second},
		"ours, none":       {"x-wake-timeout", "0s", 0},
		"an SDK's":         {"x-stainless-timeout", "11", 10 * time.Second},
		"an SDK's, longer": {"x-stainless-timeout", "600", 30 * time.Second},
		"an SDK's, a second": {
			"x-stainless-timeout", "1", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				a := r.chat("half", append([]string{c.header, c.value}, off...)...)
				pass(time.Minute)
				retry := "1 second" // after the client's own clock its wait may go on at once
				if strings.HasSuffix(name, "longer") {
					retry = "30 seconds"
				}
				require.Contains(r.t, a.all(), fmt.Sprintf(`%v 503 {"error":{"code":"model_waking","message":"model half is waking up; retry in %s"`, c.want, retry))
				require.Equal(r.t, 1, r.holds("expired"))
				require.Equal(r.t, 1, int(r.gauge("hivenet_wake_hold_seconds")))
			})
		})
	}
}

// A model stays wanted while its clients give up and come back, so that its load is never
// canceled.
func TestAWishOutlivesClientsThatComeBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ waits, pauses time.Duration }{
		"left after 10 s, back in 20 s": {10 * time.Second, 20 * time.Second},
		"a retry every minute":          {35 * time.Second, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				p := r.join(pb.State_STATE_ASLEEP, "m")
				always := func(d time.Duration) {
					for range int(d / time.Second) {
						pass(time.Second)
						require.Equal(r.t, 1, r.wanted("m"))
					}
				}
				a := r.chat("m")
				p.says(r.t, pb.State_STATE_WAKING)
				for range 5 {
					always(c.waits)
					a.gone()
					require.Zero(r.t, r.demand("m"))
					always(c.pauses)
					a = r.chat("m")
				}
				require.Equal(r.t, []string{"wake m"}, p.heard(), "one wake, never taken back")
				a.gone()
				pass(31 * time.Second)
				require.Zero(r.t, r.wanted("m"), "after the linger")
				p.leave()
				synctest.Wait()
			})
		})
	}
}

// A hundred cold requests are one wake.
func TestAHundredRequestsAreOneWake(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		p := r.join(pb.State_STATE_ASLEEP, "m")
		var all []ask
		for range 100 {
			all = append(all, r.chat("m"))
		}
		require.Equal(r.t, 100, r.demand("m"))
		require.Equal(r.t, []string{"wake m"}, p.heard())
		late := r.chat("m")
		require.Contains(r.t, late.all(), "too many requests are already waiting for it; retry in 30 seconds")
		require.Equal(r.t, 100, r.demand("m"), "one that was refused is not counted")
		require.Equal(r.t, 1, r.holds("full"))
		for _, a := range all {
			a.gone()
		}
		require.Equal(r.t, 100, r.holds("disconnected"))
		p.leave()
		synctest.Wait()
	})
}

// A retry with the id of a request that still waits adds no demand, from the same
// client and in any letter case.
func TestARetryThatIsToldByItsIDCountsOnce(t *testing.T) {
	t.Parallel()
	const id = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	bubble(t, func(r *rig) {
		first := r.chat("m", "x-client-request-id", id)
		second := r.chat("m", "x-client-request-id", strings.ToUpper(id))
		require.Equal(r.t, 1, r.demand("m"))
		other := r.chat("m", "x-client-request-id", "not-a-uuid")
		another := r.chat("m", "x-client-request-id", "not-a-uuid")
		require.Equal(r.t, 3, r.demand("m"))
		first.gone()
		require.Equal(r.t, 3, r.demand("m"), "the retry still waits")
		second.gone()
		require.Equal(r.t, 2, r.demand("m"))
		other.gone()
		another.gone()
	})
}

// count_tokens is never held and wakes nothing.
func TestCountingTokensWakesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		p := r.join(pb.State_STATE_ASLEEP, "m")
		a := r.post("/v1/messages/count_tokens", `{"model":"m","messages":[]}`)
		require.Regexp(r.t, `^0s 404 .*"code":"model_not_found"`, a.all())
		require.Zero(r.t, r.demand("m"))
		require.Zero(r.t, r.wanted("m"))
		require.Empty(r.t, p.heard())
		p.leave()
		synctest.Wait()
	})
}

// Large bodies for one model leave half of the held bytes to the others, unless there
// are none.
func TestOneModelDoesNotTakeAllHeldBytes(t *testing.T) {
	t.Parallel()
	flags := []string{"--max-request-bytes=1KiB", "--wake-hold-max-bytes=4KiB"}
	large := func(r *rig, model string) ask {
		return r.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"x":%q}`, model, strings.Repeat("x", 900)))
	}
	bubble(t, func(r *rig) {
		held := []ask{large(r, "m"), large(r, "m")}
		require.Regexp(r.t, `^0s 503 .*too many requests are already waiting`, large(r, "m").all())
		held = append(held, large(r, "hour"))
		for _, a := range held {
			require.Empty(r.t, a.all())
		}
		_, err := r.maps.Push([]byte(`{"placements": [{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true}]}`), true)
		require.NoError(r.t, err)
		held = append(held, large(r, "m"))
		require.Empty(r.t, held[3].all(), "it is the only one now")
		for _, a := range held {
			a.gone()
		}
	}, flags...)
}
