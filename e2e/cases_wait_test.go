// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// x-wake-timeout shortens a hold, and never lengthens it.
func TestAClientsWaitIsShortenedAndNeverLengthened(t *testing.T) {
	s := startSite(t)
	// A client whose own timeout ended the wait may retry at once.
	const waits = `"code":"model_waking","message":"model %s is waking up; retry in %s"`
	for name, c := range map[string]struct {
		model, value string
		status       int
		body         string
		least, most  time.Duration
	}{
		"shorter":      {"m", "500ms", 503, fmt.Sprintf(waits, "m", "1 second"), 500 * time.Millisecond, slack},
		"not at all":   {"m", "0s", 503, fmt.Sprintf(waits, "m", "1 second"), 0, slack},
		"longer":       {"short", "10m", 503, fmt.Sprintf(waits, "short", "30 seconds"), 300 * time.Millisecond, slack},
		"no duration":  {"m", "20", 400, `"code":"request_invalid","message":"the header x-wake-timeout must be a duration such as 20s"`, 0, slack},
		"negative":     {"m", "-1s", 400, `"code":"request_invalid"`, 0, slack},
		"empty":        {"m", "", 400, `"code":"request_invalid"`, 0, slack},
		"an SDK's own": {"m", "", 503, fmt.Sprintf(waits, "m", "1 second"), 500 * time.Millisecond, slack},
	} {
		t.Run(name, func(t *testing.T) {
			headers := []string{"X-Wake-Timeout", c.value}
			if name == "an SDK's own" {
				headers = []string{"X-Stainless-Timeout", "1.5"}
			}
			r := s.post(chatPath, chatBody(c.model, false), headers...)
			require.NoError(t, r.err)
			require.Equal(t, c.status, r.status, r.body)
			require.Contains(t, r.body, c.body)
			require.GreaterOrEqual(t, r.elapsed, c.least)
			require.Less(t, r.elapsed, c.most)
		})
	}
	s.metric(`hivenet_wake_holds_total{outcome="expired"}`, "4")
	s.atRest()
}

// Once a request has its slot no timer of Holdgate runs: the engine may take longer
// than the limits of the wait for a slot and of the hold.
func TestNoRouterTimerRunsWhileAnEngineWorks(t *testing.T) {
	s := startSite(t, "--request-timeout", "200ms", "--wake-keepalive", "10m")
	require.Equal(t, http.StatusOK, s.putMap(`{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true,"hold_budget":"5s"}]}`).status)
	const think = 6 * time.Second
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(think)
		_, _ = io.WriteString(w, "first ")
		_ = http.NewResponseController(w).Flush()
		time.Sleep(time.Second)
		_, _ = io.WriteString(w, "second")
	})
	relayed := s.start(t.Context(), chatPath, chatBody("m", true))
	native := s.start(t.Context(), chatPath, chatBody("m", true), "X-Wake-Keepalive", "off")
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	s.register(hello("a", e.addr(), 8, "m"))
	s.eventually("both have a slot", func() bool { return e.count() == 2 })
	for name, answer := range map[string]<-chan result{
		"relayed": relayed, "held, then native": native, "warm": s.start(t.Context(), chatPath, chatBody("m", false)),
	} {
		r := <-answer
		require.NoError(t, r.err, name)
		require.Equal(t, http.StatusOK, r.status, "%s: %s", name, r.body)
		require.Equal(t, "first second", r.body, name)
		require.GreaterOrEqual(t, r.elapsed, think, name)
	}
	s.atRest()
}

// Only the registration counts: the engine is not probed, so a slow network to it
// delays nothing but its answers.
func TestNoEngineIsProbed(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, nil)
	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false)).status)
	time.Sleep(time.Second)
	require.Equal(t, 2, e.count(), "two requests, and nothing else")
	s.atRest()
}

// The demand is counted as soon as the request arrives, before anything else can
// happen.
func TestTheDemandIsThereAtOnce(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "10m")
	begin := time.Now()
	answer := s.send(chatPath, chatBody("m", false))
	require.Eventually(t, func() bool { return s.counter(`hivenet_pending_demand{model="m"}`) == 1 }, slack, time.Millisecond)
	require.Less(t, time.Since(begin), slack)
	require.InDelta(t, 1, s.counter(`hivenet_wake_wanted{model="m"}`), 0)
	require.Empty(t, answer)
	require.Equal(t, http.StatusOK, s.putMap(`{"placements":[]}`).status)
	require.Equal(t, "HTTP/1.1 404 Not Found", (<-answer).status)
}

// There is no third outcome around a registration: each request is held or served.
func TestABurstAroundARegistrationIsHeldOrServed(t *testing.T) {
	s := startSite(t, "--wake-hold-max", "1000", "--queue-depth", "1000")
	e := newEngine(t, nil)
	var answers []<-chan result
	for i := range 400 {
		answers = append(answers, s.start(t.Context(), chatPath, chatBody("m", i%2 == 0)))
		if i == 200 {
			s.register(hello("a", e.addr(), 4, "m"))
		}
	}
	for _, a := range answers {
		r := <-a
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, `{"answer":true}`, r.body)
	}
	require.Equal(t, 400, e.count())
	s.atRest()
}

// Many clients disconnect at once: every count is back at 0, and everything that they
// held is free.
func TestACrowdThatLeavesIsGoneAtOnce(t *testing.T) {
	const crowd = 680
	s := startSite(t, "--wake-hold-max", "680", "--wake-hold-max-total", "680", "--wake-linger", "0s")
	ctx, cancel := context.WithCancel(t.Context())
	var answers []<-chan result
	for range crowd {
		answers = append(answers, s.start(ctx, chatPath, chatBody("m", true)))
	}
	s.metric(`hivenet_pending_demand{model="m"}`, fmt.Sprint(crowd))
	left := time.Now()
	cancel()
	s.metric(`hivenet_pending_demand{model="m"}`, "0")
	require.Less(t, time.Since(left), slack)
	for _, a := range answers {
		require.ErrorIs(t, (<-a).err, context.Canceled)
	}
	s.metric(`hivenet_wake_holds_total{outcome="disconnected"}`, fmt.Sprint(crowd))
	s.metric(`hivenet_wake_wanted{model="m"}`, "0")
	s.atRest()
	next := s.start(t.Context(), chatPath, chatBody("m", false)) // all places are free
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-next).status)
	s.atRest()
}

// Holds that begin and end between two scrapes are in the counter nevertheless.
func TestShortHoldsAreCounted(t *testing.T) {
	s := startSite(t)
	for range 5 {
		s.post(chatPath, chatBody("m", false), "X-Wake-Timeout", "20ms")
	}
	text := s.metrics() // the only scrape
	require.Contains(t, text, "hivenet_wake_holds_total{outcome=\"expired\"} 5\n")
	require.Contains(t, text, "hivenet_wake_hold_seconds_count 5\n")
	require.Contains(t, text, "hivenet_pending_demand{model=\"m\"} 0\n")
	s.atRest()
}

// An engine's own keepalives pass through the relay unchanged, however slowly they
// come.
func TestAnEnginesOwnPingsPass(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "100ms")
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 4 {
			_, _ = io.WriteString(w, ": ping\n\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(250 * time.Millisecond) // more than an interval
		}
		_, _ = io.WriteString(w, "data: {}\n\n")
	})
	answer := s.send(chatPath, chatBody("m", true))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	time.Sleep(150 * time.Millisecond)
	s.register(hello("a", e.addr(), 4, "m"))
	w := <-answer
	require.True(t, w.whole)
	kept, rest, found := strings.Cut(w.body, ": ping\n\n")
	require.True(t, found)
	require.NotEmpty(t, kept)
	require.Empty(t, strings.ReplaceAll(kept, comment, ""))
	require.Equal(t, strings.Repeat(": ping\n\n", 3)+"data: {}\n\n", rest, "and no keepalive of the router among them")
	s.atRest()
}
