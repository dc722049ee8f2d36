// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// stormEngine behaves as a header of the request asks.
func stormEngine(t *testing.T) *engine {
	t.Helper()
	return newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		cut := func() {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = conn.Close()
			}
		}
		switch r.Header.Get("X-Do") {
		case "error":
			w.WriteHeader(http.StatusInternalServerError)
		case "die":
			cut()
		case "half":
			_, _ = io.WriteString(w, "data: half\n")
			_ = http.NewResponseController(w).Flush()
			cut()
		case "slow":
			for range 5 {
				_, _ = io.WriteString(w, "data: x\n\n")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(20 * time.Millisecond)
			}
		default:
			_, _ = io.WriteString(w, `{"answer":true}`)
		}
	})
}

// storm is clients of all kinds at once.
type storm struct {
	*site
	mu       sync.Mutex
	answered map[string]int // the status by request id
	statuses map[int]int
	resets   atomic.Int64
	cuts     atomic.Int64
}

func (s *storm) run(span time.Duration) {
	var clients sync.WaitGroup
	defer clients.Wait()
	until := time.Now().Add(span)
	for range 40 {
		clients.Go(func() {
			for time.Now().Before(until) {
				s.send()
			}
		})
	}
}

// send sends one request, which ends with an answer or the client's own reset.
func (s *storm) send() {
	ctx, cancel := context.WithTimeout(s.t.Context(), 40*time.Second)
	defer cancel()
	do := []string{"", "", "error", "die", "half", "slow", "slow"}[rand.IntN(7)]
	leaves := rand.IntN(4) == 0
	if leaves {
		time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, cancel)
	}
	id := uuid.NewString()
	headers := []string{"X-Do", do, "X-Request-Id", id, "X-Api-Key", apiKey}
	if rand.IntN(3) == 0 {
		headers = append(headers, "X-Wake-Keepalive", "off")
	}
	body := chatBody("m", rand.IntN(2) == 0)
	if rand.IntN(20) == 0 {
		body = bigBody("m", 300<<10)
	}
	r := s.do(s.request(ctx, http.MethodPost, chatPath, body, headers...))
	switch {
	case r.err == nil:
		s.mu.Lock()
		s.answered[id] = r.status
		s.statuses[r.status]++
		s.mu.Unlock()
		if r.status >= 400 {
			time.Sleep(100 * time.Millisecond) // otherwise these would be repeated at once
		}
	case leaves && ctx.Err() != nil:
		s.resets.Add(1)
	case do == "half":
		s.cuts.Add(1)
	default:
		s.t.Errorf("a request that was to %q: status %d, %v", do, r.status, r.err)
	}
}

// repeat calls do repeatedly until ctx ends.
func repeat(ctx context.Context, wg *sync.WaitGroup, pause time.Duration, do func(n int)) {
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			do(n)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

// disrupt makes agents leave and return, removes and restores keys, and breaks the log.
func (s *storm) disrupt(ctx context.Context, e *engine, log *lossyLog, keys string) *sync.WaitGroup {
	gone := closedPort(s.t)
	wg := &sync.WaitGroup{}
	for i, address := range []string{e.addr(), e.addr(), gone} {
		repeat(ctx, wg, 150*time.Millisecond, func(int) { // enough for a wake
			a := s.register(hello(fmt.Sprint("agent-", i), address, 4, "m"))
			time.Sleep(time.Duration(400+rand.IntN(800)) * time.Millisecond)
			a.leave()
		})
	}
	good, err := os.ReadFile(keys)
	require.NoError(s.t, err)
	repeat(ctx, wg, 1500*time.Millisecond, func(int) {
		for _, text := range []string{"keys: []", string(good)} {
			if os.WriteFile(keys, []byte(text), 0o600) != nil || s.app.Reload() != nil {
				s.t.Error("the keys were not read")
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
	repeat(ctx, wg, time.Second, func(n int) { log.cut.Store(n > 0) })
	return wg
}

// requireRest requires that every counter is 0, with an agent that has no request.
func (s *storm) requireRest() {
	s.t.Helper()
	e := newEngine(s.t, nil)
	last := s.register(hello("last", e.addr(), 1, "m"))
	s.within(30, "nothing is in flight", func() bool {
		sum := 0
		for n := range maps.Values(s.inFlight()) {
			sum += n
		}
		return sum == 0 && s.app.InFlight() == 0
	})
	s.metric(`hivenet_pending_demand{model="m"}`, "0")
	for _, gauge := range []string{"admission_requests", "admission_tokens", "admission_waiting", "queue_depth"} {
		s.metric("hivenet_"+gauge+`{model="m"}`, "0")
	}
	s.metric(`hivenet_agent_slots_in_use{agent_id="last"}`, "0")
	require.Regexp(s.t, `(?m)^requests +0 in flight$`, s.command("status"))
	last.leave()
	s.eventually("it is gone", func() bool { return len(s.inFlight()) == 1 })
	s.requireNoBytes()
	s.atRest()
}

// requireNoBytes requires that no byte is held and no body uses memory: one request may
// use the whole limit.
func (s *storm) requireNoBytes() {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	all := s.start(ctx, chatPath, bigBody("m", stormBytes-100), "X-Api-Key", apiKey)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	leave()
	require.ErrorIs(s.t, (<-all).err, context.Canceled)
}

// stormBytes is the limit of all bodies together.
const stormBytes = 4 << 20

// Everything that a request uses is freed, however it ends, when all kinds of ends
// happen together.
func TestNothingIsLeftAfterAStorm(t *testing.T) {
	keys, audit := keysFile(t, ""), filepath.Join(t.TempDir(), "audit.log")
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("models: {m: {max_inflight: 3, admit_budget_tokens: 2000000}}"), 0o600))
	site, log, restart := startLossySite(t, "--auth-file", keys, "--audit-file", audit, "--policy-file", rules, "--wake-keepalive", "40ms",
		"--wake-hold-max-per-key", "100", "--wake-hold-max-bytes", fmt.Sprint(stormBytes), "--max-request-bytes", fmt.Sprint(stormBytes),
		"--max-body-bytes-total", fmt.Sprint(stormBytes), "--wake-linger", "0s")
	s := &storm{site: site, answered: map[string]int{}, statuses: map[int]int{}}
	s.http.Transport.(*http.Transport).MaxIdleConnsPerHost = 100
	e := stormEngine(t)

	log.every.Store(10)
	// One request is held until the first agent comes. Of the others it is not known: one agent may
	// register before another leaves.
	held := s.start(t.Context(), chatPath, chatBody("m", true), "X-Api-Key", apiKey)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	ctx, calm := context.WithCancel(t.Context())
	troubles := s.disrupt(ctx, e, log, keys)
	s.run(5 * time.Second)
	calm()
	troubles.Wait()
	<-held
	log.every.Store(0)
	log.cut.Store(false)
	s.requireRest()
	s.requireRecords(audit)
	require.Positive(t, log.lost.Load(), "no record was lost")
	for _, series := range []string{`lost_records_total`, `wake_holds_total{outcome="released"}`, `wake_holds_total{outcome="disconnected"}`} {
		require.Regexp(t, regexp.QuoteMeta("hivenet_"+series)+" [1-9]", s.metrics(), "%s is 0", series)
	}
	require.Contains(t, s.log.String(), "refused the connection")
	require.Contains(t, s.log.String(), "ended the connection before its answer")
	t.Logf("answers %v, %d resets, %d cuts, %d records lost", s.statuses, s.resets.Load(), s.cuts.Load(), log.lost.Load())

	// Restart the router during the storm.
	running := make(chan struct{})
	go func() {
		defer close(running)
		s.run(3 * time.Second)
	}()
	s.register(hello("before", e.addr(), 4, "m"))
	time.Sleep(time.Second)
	require.NoError(t, s.app.Stop(context.Background()))
	restart()
	a := s.register(hello("after", e.addr(), 4, "m"))
	<-running
	a.leave()
	s.requireRest()
	t.Logf("answers %v, %d resets, %d cuts, %d records lost", s.statuses, s.resets.Load(), s.cuts.Load(), log.lost.Load())
	for _, status := range []int{200, 401, 500, 503} {
		require.Positive(t, s.statuses[status], "no request was answered %d", status)
	}
}

// requireRecords requires one line for each answer, with its status unless the record
// was lost or the status comes after a keepalive.
func (s *storm) requireRecords(path string) {
	s.t.Helper()
	byID := map[any]map[string]any{}
	s.within(10, "all are logged", func() bool {
		clear(byID)
		for _, rec := range auditLines(s.t, path) {
			require.Nil(s.t, byID[rec["request_id"]], "two records of one request, the second %v", rec)
			byID[rec["request_id"]] = rec
		}
		for id := range s.answered {
			if byID[id] == nil {
				return false
			}
		}
		return true
	})
	for id, status := range s.answered {
		rec := byID[id]
		if rec["error_code"] != "record_lost" && status != http.StatusOK {
			require.EqualValues(s.t, status, rec["status"], "%v", rec)
		}
	}
}
