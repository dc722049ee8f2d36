// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A served request and its answer pass unchanged.
func TestAServedRequestIsUntouched(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "1ms")
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("X-Engine", "own")
		w.Header().Set("Server", "engine/1")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "short and stout")
	})
	s.register(hello("a", e.addr(), 4, "m"))
	body := "{\n \"model\" : \"m\", \"x\": 1e3, \"ü\": \"\\u00fc\" }\n"
	id := uuid.NewString()
	r := s.post(chatPath+"?q=%20a+b", body, "X-Request-Id", id, "User-Agent", "test/1", "Authorization", "Bearer key",
		"X-Custom", "a", "X-Custom", "b", "X-Wake-Keepalive", "off")
	require.Equal(t, http.StatusTeapot, r.status)
	require.Equal(t, "short and stout", r.body)
	require.Equal(t, "own", r.header.Get("X-Engine"))
	require.Equal(t, "engine/1", r.header.Get("Server"))
	require.Equal(t, "15", r.header.Get("Content-Length"))
	require.Equal(t, id, r.header.Get("X-Request-Id"))
	require.Empty(t, r.header.Get("Server-Timing"))

	got, sent := e.last()
	require.Equal(t, body, sent)
	require.Equal(t, chatPath+"?q=%20a+b", got.RequestURI)
	require.Equal(t, int64(len(body)), got.ContentLength)
	require.Equal(t, strings.TrimPrefix(s.url, "http://"), got.Host)
	names := []string{}
	for name := range got.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	require.Equal(t, []string{
		"Accept-Encoding", "Authorization", "Content-Length", "Content-Type", "Holdgate-Via", "User-Agent", "X-Custom", "X-Forwarded-Proto", "X-Request-Id",
	}, names)
	require.Equal(t, []string{"a", "b"}, got.Header.Values("X-Custom"))
	require.Equal(t, id, got.Header.Get("X-Request-Id"))
	s.atRest()
}

func TestARequestIDThatIsNoUUIDIsReplaced(t *testing.T) {
	s, recordOf := startAudited(t, "--wake-keepalive", "50ms")
	const junk = "junk-77"
	is := func(r result, status int, id string) {
		t.Helper()
		require.Equal(t, status, r.status, r.body)
		require.Equal(t, []string{id}, r.header.Values("X-Request-Id"))
		recordOf(id)
	}
	expired := s.post(chatPath, chatBody("short", true), "X-Request-Id", junk)
	is(expired, http.StatusOK, expired.header.Get("X-Request-Id"))
	refused := s.post(chatPath, "{", "X-Request-Id", junk)
	is(refused, http.StatusBadRequest, refused.header.Get("X-Request-Id"))

	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), 4, "m"))
	native := s.post(chatPath, chatBody("m", false), "X-Request-Id", junk)
	got, _ := e.last()
	is(native, http.StatusOK, got.Header.Get("X-Request-Id"))
	require.NoError(t, uuid.Validate(got.Header.Get("X-Request-Id")))
	s.atRest()
}

// Two requests with one id at the same time are two requests.
func TestARequestIDInFlightIsNotTakenTwice(t *testing.T) {
	s := startSite(t)
	id := uuid.NewString()
	first := s.start(t.Context(), chatPath, chatBody("m", false), "X-Request-Id", id)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	second := s.start(t.Context(), chatPath, chatBody("m", false), "X-Request-Id", strings.ToUpper(id))
	s.eventually("two in flight", func() bool { return s.app.InFlight() == 2 })
	third := s.start(t.Context(), chatPath, chatBody("m", false), "X-Request-Id", id)
	s.eventually("three in flight", func() bool { return s.app.InFlight() == 3 })
	s.metric(`hivenet_pending_demand{model="m"}`, "1") // a retry of the same request
	s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	for _, answer := range []<-chan result{first, second, third} {
		require.Equal(t, http.StatusOK, (<-answer).status)
	}
	s.atRest()
}

// No engine gets more requests than its slots, whether they are served or queued.
func TestSlotsBoundWhatAnEngineSees(t *testing.T) {
	s := startSite(t, "--queue-depth", "100")
	var mu sync.Mutex
	running, most := 0, 0
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		defer func() {
			mu.Lock()
			running--
			mu.Unlock()
		}()
		_, _ = io.WriteString(w, "ok")
	})
	s.register(hello("a", e.addr(), 3, "m"))
	var answers []<-chan result
	for range 60 {
		answers = append(answers, s.start(t.Context(), chatPath, chatBody("m", false)))
	}
	for _, a := range answers {
		require.Equal(t, http.StatusOK, (<-a).status)
	}
	require.LessOrEqual(t, most, 3)
	require.Equal(t, 60, e.count())
	s.atRest()
}

// startOccupied starts a site whose only slot is taken until free is called; free
// requires that the request in it is answered, and that everything is at rest then.
func startOccupied(t *testing.T, flags ...string) (s *site, free func()) {
	t.Helper()
	s = startSite(t, flags...)
	finish := make(chan struct{})
	e := newEngine(t, func(http.ResponseWriter, *http.Request) { <-finish })
	s.register(hello("a", e.addr(), 1, "m"))
	first := s.start(t.Context(), chatPath, chatBody("m", false))
	s.eventually("the slot is taken", func() bool { return e.count() == 1 })
	return s, func() {
		close(finish)
		require.Equal(t, http.StatusOK, (<-first).status)
		s.atRest()
	}
}

func TestAFullReplicaWithoutQueueIsNoCapacity(t *testing.T) {
	s, free := startOccupied(t, "--queue-depth", "0")
	r := s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Contains(t, r.body, `"code":"no_capacity"`)
	require.Equal(t, "1", r.header.Get("Retry-After"))
	free()
}

func TestAWaitForASlotTimesOut(t *testing.T) {
	s, free := startOccupied(t, "--request-timeout", "200ms")
	r := s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusGatewayTimeout, r.status)
	require.Contains(t, r.body, `"code":"request_timeout"`)
	free()
}

func TestAnAgentThatLeavesIsOutOfRoutingAtOnce(t *testing.T) {
	s := startSite(t)
	a := s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false)).status)
	a.leave()
	s.eventually("no longer warm", func() bool {
		return strings.Contains(s.do(s.request(t.Context(), http.MethodGet, "/v1/models/m", "")).body, `"asleep"`)
	})
	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("b", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	s.atRest()
}

// When one registration wakes many waiters, each is answered once.
func TestAThousandHeldRequestsAreReleasedByOneRegistration(t *testing.T) {
	const crowd = 1000
	s := startSite(t, "--wake-hold-max", "2000", "--wake-hold-max-total", "2000", "--request-timeout", "5m")
	s.http.Transport.(*http.Transport).MaxIdleConnsPerHost = crowd
	var mu sync.Mutex
	seen := map[string]int{}
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.Header.Get("X-Number")]++
		mu.Unlock()
		_, _ = io.WriteString(w, "answer "+r.Header.Get("X-Number"))
	})
	var answers []<-chan result
	for i := range crowd {
		answers = append(answers, s.start(t.Context(), chatPath, chatBody("m", false), "X-Number", fmt.Sprint(i)))
	}
	s.eventually("all are held", func() bool {
		return strings.Contains(s.metrics(), fmt.Sprintf("hivenet_pending_demand{model=\"m\"} %d\n", crowd))
	})
	s.register(hello("a", e.addr(), 16, "m"))
	for i, a := range answers {
		r := <-a
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, fmt.Sprint("answer ", i), r.body)
	}
	require.Len(t, seen, crowd)
	require.Equal(t, crowd, e.count())
	s.metric(`hivenet_wake_holds_total{outcome="released"}`, fmt.Sprint(crowd))
	s.atRest()
}

// More held requests than Envoy's default limits do not delay a warm one.
func TestHeldRequestsDoNotStandInTheWayOfWarmOnes(t *testing.T) {
	s := startSite(t, "--wake-hold-max", "2000", "--wake-hold-max-total", "2000")
	s.register(hello("warm", newEngine(t, nil).addr(), 4, "warm"))
	var answers []<-chan result
	for range 1100 {
		answers = append(answers, s.start(t.Context(), chatPath, chatBody("m", false)))
	}
	s.eventually("all are held", func() bool { return strings.Contains(s.metrics(), `hivenet_pending_demand{model="m"} 1100`) })
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("warm", false)).status)
	require.Equal(t, http.StatusOK, s.putMap(`{"placements":[]}`).status)
	for _, a := range answers {
		require.Equal(t, http.StatusNotFound, (<-a).status)
	}
}

func TestHoldLimitsAnswerAtOnce(t *testing.T) {
	s := startSite(t, "--wake-hold-max", "2")
	first := s.start(t.Context(), chatPath, chatBody("m", false))
	second := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	r := s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.JSONEq(t, `{"error":{"code":"model_waking","message":"model m is waking up and too many requests are already waiting for it; retry in 30 seconds","source":"router","retry_after":30}}`, r.body)
	require.Equal(t, "30", r.header.Get("Retry-After"))
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	s.metric(`hivenet_wake_holds_total{outcome="full"}`, "1")
	s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-first).status)
	require.Equal(t, http.StatusOK, (<-second).status)
	s.atRest()
}

func TestCountTokensIsNeverHeld(t *testing.T) {
	s := startSite(t)
	r := s.post("/v1/messages/count_tokens", chatBody("m", false))
	require.Equal(t, http.StatusNotFound, r.status)
	require.JSONEq(t, `{"type":"error","error":{"type":"not_found_error","code":"model_not_found","message":"model m does not exist here","source":"router"}}`, r.body)
	s.metric(`hivenet_pending_demand{model="m"}`, "0")
	s.metric(`hivenet_wake_wanted{model="m"}`, "0")
	s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, s.post("/v1/messages/count_tokens", chatBody("m", false)).status)
	s.atRest()
}
