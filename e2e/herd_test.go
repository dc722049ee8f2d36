// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// herd records the requests at the engines.
type herd struct {
	mu      sync.Mutex
	running map[string]int // by engine
	most    map[string]int
	seen    map[string]chan struct{} // by key and place; closed when an engine has the request
	faults  []string
}

// arrive records a request at an engine, and waits until its predecessor of the same
// key has arrived too: that has a slot then, but may still be in transit.
func (h *herd) arrive(engine, key string, place int) {
	h.mu.Lock()
	h.running[engine]++
	h.most[engine] = max(h.most[engine], h.running[engine])
	before := h.at(key, place-1)
	close(h.at(key, place)) // panics on the second time
	h.mu.Unlock()
	if place == 0 {
		return
	}
	select {
	case <-before:
	case <-time.After(5 * time.Second):
		h.mu.Lock()
		h.faults = append(h.faults, fmt.Sprintf("request %d of %s came before its predecessor", place, key))
		h.mu.Unlock()
	}
}

// at returns the channel of a request; the caller holds the lock.
func (h *herd) at(key string, place int) chan struct{} {
	name := fmt.Sprint(key, " ", place)
	if h.seen[name] == nil {
		h.seen[name] = make(chan struct{})
	}
	return h.seen[name]
}

func (h *herd) leave(engine string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[engine]--
}

// engine starts an engine and its agent, which is a separate process.
func (h *herd) engine(s *site, id string, slots int) {
	e := newEngine(s.t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // the agent's health check
		}
		key := r.Header.Get("X-Of")
		place, err := strconv.Atoi(r.Header.Get("X-Place"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.arrive(id, key, place)
		defer h.leave(id)
		time.Sleep(20 * time.Millisecond) // the engine's work
		_, _ = fmt.Fprintf(w, `{"of":"%s %d"}`, key, place)
	})
	start(s.t, "agent", "--router", s.app.AgentsAddr(), "--id", id, "--engine", "custom", "--backend-url", "http://"+e.addr(),
		"--model", "m", "--capacity", strconv.Itoa(slots)).waitLog("registered")
}

// manyKeys returns the path of a keys file with n keys, and the keys.
func manyKeys(t *testing.T, n int) (path string, keys []string) {
	t.Helper()
	text := "keys:\n"
	for i := range n {
		keys = append(keys, fmt.Sprint("key-number-", i))
		text += fmt.Sprintf("- {id: k%d, tenant: t, key_hash: %x}\n", i, sha256.Sum256([]byte(keys[i])))
	}
	path = filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path, keys
}

func TestAThousandHeldRequestsMeetFourSlots(t *testing.T) {
	const slots, engines, keys, rows = 4, 3, 20, 50 // a row has one request of each key
	path, names := manyKeys(t, keys)
	s := startSite(t, "--wake-hold-max=1000", "--wake-hold-max-per-key=100", "--request-timeout=2m", "--wake-keepalive=1s", "--auth-file", path)
	h := &herd{running: map[string]int{}, most: map[string]int{}, seen: map[string]chan struct{}{}}
	var answers []<-chan result
	for place := range rows {
		for _, key := range names {
			answers = append(answers, s.start(t.Context(), chatPath, chatBody("m", false), "x-api-key", key, "x-of", key, "x-place", strconv.Itoa(place)))
		}
		s.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(len(answers)))
	}
	for n := range engines {
		h.engine(s, fmt.Sprint("engine-", n), slots)
	}
	for n, answer := range answers {
		r := <-answer
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, fmt.Sprintf(`{"of":"%s %d"}`, names[n%keys], n/keys), strings.TrimLeft(r.body, " "))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Empty(t, h.faults)
	for engine, most := range h.most {
		require.LessOrEqual(t, most, slots, engine)
		require.Zero(t, h.running[engine])
		s.metric(fmt.Sprintf("hivenet_agent_slots_in_use{agent_id=%q}", engine), "0")
	}
	require.Equal(t, slots, h.most["engine-0"], "the first engine had all to do at first")
	s.atRest()
	require.Contains(t, s.metrics(), fmt.Sprintf("hivenet_wake_holds_total{outcome=%q} %d\n", "released", len(answers)))
}

// gatedSite starts a site with a policy file.
func gatedSite(t *testing.T, text string, flags ...string) *site {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return startSite(t, append(flags, "--policy-file", path)...)
}

// busyEngine starts an engine whose requests last until end is called.
func busyEngine(t *testing.T) (e *engine, end func()) {
	t.Helper()
	work := make(chan struct{})
	e = newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-work:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, `{"answer":true}`)
	})
	end = sync.OnceFunc(func() { close(work) })
	t.Cleanup(end)
	return e, end
}

func TestTheGateLimitsAdmittedRequests(t *testing.T) {
	keys := keysFile(t, "  max_occupancy_share: 0.25\n")
	s := gatedSite(t, "models: {m: {max_inflight: 2, admit_budget_tokens: 1000}}", "--auth-file", keys)
	e, end := busyEngine(t)
	s.register(hello("a", e.addr(), 8, "m"))
	key := []string{"x-api-key", apiKey}
	body := func(tokens int) string { return bigBody("m", tokens*32/10) }

	first, second := s.start(t.Context(), chatPath, body(100), key...), s.start(t.Context(), chatPath, body(100), key...)
	s.eventually("two are admitted", func() bool { return e.count() == 2 })
	s.metric(`hivenet_admission_requests{model="m"}`, "2")
	s.metric(`hivenet_admission_tokens{model="m"}`, "200")

	full := s.post(chatPath, body(1), key...)
	require.Equal(t, http.StatusTooManyRequests, full.status, full.body)
	require.Contains(t, full.body, `"code":"concurrency_limit_exceeded","message":"model m has as many requests in hand as it may`)
	require.GreaterOrEqual(t, full.elapsed, 250*time.Millisecond, "it waited for room")
	require.Equal(t, "1", full.header.Get("Retry-After"))

	large := s.post(chatPath, body(901), key...)
	require.Equal(t, http.StatusTooManyRequests, large.status, large.body)
	require.Contains(t, large.body, `"code":"concurrency_limit_exceeded","message":"the request is larger than what the replicas of model m may have in hand`)

	over := s.post(chatPath, body(51), key...)
	require.Equal(t, http.StatusTooManyRequests, over.status, over.body)
	require.Contains(t, over.body, `"code":"rate_limit_exceeded"`)
	require.Equal(t, "1", over.header.Get("Retry-After"))
	always := s.post(chatPath, body(251), key...)
	require.Equal(t, "60", always.header.Get("Retry-After"), always.body)

	end()
	for _, answer := range []<-chan result{first, second} {
		require.Equal(t, http.StatusOK, (<-answer).status)
	}
	s.metric(`hivenet_admission_requests{model="m"}`, "0")
	s.metric(`hivenet_admission_tokens{model="m"}`, "0")
	s.atRest()
}

func TestAReleasedRequestWithoutRoomIsToldThatTheModelIsAtCapacity(t *testing.T) {
	for name, tt := range map[string]struct {
		header string
		status int
	}{
		"before a keepalive": {"off", http.StatusServiceUnavailable},
		"after a keepalive":  {"", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			s := gatedSite(t, "models: {m: {max_inflight: 1}}", "--wake-keepalive=300ms")
			e, end := busyEngine(t)
			first := s.start(t.Context(), chatPath, chatBody("m", false))
			s.metric(`hivenet_pending_demand{model="m"}`, "1")
			second := s.start(t.Context(), chatPath, chatBody("m", false), "x-wake-timeout", "2s", "x-wake-keepalive", tt.header)
			s.metric(`hivenet_pending_demand{model="m"}`, "2")
			s.register(hello("a", e.addr(), 8, "m"))
			r := <-second
			require.Equal(t, tt.status, r.status)
			require.Contains(t, r.body, `"code":"model_waking","message":"model m woke up but is still at capacity; retry in 30 seconds"`)
			require.GreaterOrEqual(t, r.elapsed, 2*time.Second)
			end()
			require.Equal(t, http.StatusOK, (<-first).status)
			s.metric(`hivenet_admission_requests{model="m"}`, "0")
			s.atRest()
		})
	}
}

// zone registers an agent with a label.
func (s *site) zone(id, address, zone string) {
	h := hello(id, address, 8, "m")
	h.Labels = map[string]string{"zone": zone}
	s.register(h)
}

func TestTheNextStepTakesOverFromAReplicaThatDies(t *testing.T) {
	for name, held := range map[string]bool{"through the rehold lane": false, "in a relay": true} {
		t.Run(name, func(t *testing.T) {
			s := gatedSite(t, "models: {m: {max_inflight: 1, steps: [{name: near, match: {labels: {zone: a}}, max_tries: 1}, {name: far, match: {labels: {zone: b}}}]}}")
			dies, answers := dyingEngine(t, 100), newEngine(t, nil)
			var answer <-chan result
			if held {
				answer = s.start(t.Context(), chatPath, chatBody("m", false))
				s.metric(`hivenet_pending_demand{model="m"}`, "1")
			}
			s.zone("dies", dies.addr(), "a")
			s.zone("answers", answers.addr(), "b")
			if !held {
				answer = s.start(t.Context(), chatPath, chatBody("m", false))
			}
			r := <-answer
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Equal(t, `{"answer":true}`, r.body)
			require.Equal(t, []int{1, 1}, []int{dies.count(), answers.count()})
			s.metric(`hivenet_admission_requests{model="m"}`, "0")
			s.atRest()
		})
	}
}

func TestARequestWhoseTriesAreUsedUpEndsWith502(t *testing.T) {
	s := gatedSite(t, "models: {m: {steps: [{name: near, match: {labels: {zone: a}}, max_tries: 1}]}}")
	dies, other := dyingEngine(t, 100), newEngine(t, nil)
	s.zone("dies", dies.addr(), "a")
	s.zone("other", other.addr(), "b")
	r := s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusBadGateway, r.status, r.body)
	require.Contains(t, r.body, `"code":"backend_error"`)
	require.Equal(t, []int{1, 0}, []int{dies.count(), other.count()})
	s.atRest()
}
