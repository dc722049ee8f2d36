// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// Set gives one model its hook, or takes it away with nil.
func (w *Webhooks) Set(name string, hook *Hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.setHook(name, hook)
}

// seenCall is a call that a hook got.
type seenCall struct {
	at   time.Duration
	url  string
	head http.Header
	body string
}

// fakeHook is a platform: it answers by script, and 202 when the script is over.
type fakeHook struct {
	begin time.Time

	mu     sync.Mutex
	script []func() (*http.Response, error)
	calls  []seenCall
}

func answer(status int, head ...string) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		h := http.Header{}
		for i := 0; i < len(head); i += 2 {
			h.Set(head[i], head[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("no"))}, nil
	}
}

func (f *fakeHook) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
	}
	f.mu.Lock()
	f.calls = append(f.calls, seenCall{time.Since(f.begin), req.URL.String(), req.Header.Clone(), string(body)})
	next := answer(http.StatusAccepted)
	if len(f.script) > 0 {
		next, f.script = f.script[0], f.script[1:]
	}
	f.mu.Unlock()
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return next()
}

// hookRig is a Webhooks in a bubble, with a hook for the model llama.
type hookRig struct {
	*Webhooks

	hook *fakeHook
	log  *bytes.Buffer
	reg  *prometheus.Registry

	mu       sync.Mutex
	failures []string
}

func newHookRig(t *testing.T, script ...func() (*http.Response, error)) *hookRig {
	t.Helper()
	r := &hookRig{
		hook: &fakeHook{begin: time.Now(), script: script}, log: &bytes.Buffer{}, reg: prometheus.NewPedanticRegistry(),
	}
	r.Webhooks = NewWebhooks(WebhookOptions{
		Demand: func(string) int { return 3 },
		OnFailed: func(model, reason string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failures = append(r.failures, model+": "+reason)
		},
		Transport: r.hook, Registerer: r.reg, Prefix: "hivenet_", Log: zerolog.New(r.log),
	})
	r.Set("llama", &Hook{Kind: "chat", URL: "https://hooks.example.com/wake?token=hush"})
	t.Cleanup(func() { r.Stop(context.Background()) })
	return r
}

func (r *hookRig) seen() []seenCall {
	synctest.Wait()
	r.hook.mu.Lock()
	defer r.hook.mu.Unlock()
	return append([]seenCall{}, r.hook.calls...)
}

func (r *hookRig) failed() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.failures...)
}

func (r *hookRig) counted(outcome string) float64 {
	synctest.Wait()
	return testutil.ToFloat64(r.metrics.calls.WithLabelValues(outcome))
}

func TestAHookIsCalledAtTheWishAndOncePerCooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t)
		r.Wanted("llama", false, false)
		require.Empty(t, r.seen())
		time.Sleep(time.Second)
		since := time.Now()
		r.Wanted("llama", true, false)
		got := r.seen()
		require.Len(t, got, 1)
		require.Equal(t, time.Second, got[0].at)
		var body map[string]any
		require.NoError(t, json.Unmarshal([]byte(got[0].body), &body))
		require.Equal(t, map[string]any{
			"model": "llama", "kind": "chat", "demand": 3.0, "wanted_since": since.UTC().Format(time.RFC3339Nano),
		}, body)
		require.Equal(t, "application/json", got[0].head.Get("Content-Type"))
		require.NoError(t, uuid.Validate(got[0].head.Get("Idempotency-Key")))

		for range 100 { // many clients, one need
			r.Wanted("llama", true, false)
		}
		time.Sleep(59 * time.Second)
		require.Len(t, r.seen(), 1)
		time.Sleep(time.Second)
		require.Len(t, r.seen(), 2)
		require.Equal(t, got[0].head.Get("Idempotency-Key"), r.seen()[1].head.Get("Idempotency-Key"))

		r.Wanted("llama", true, true) // a replica is up
		time.Sleep(time.Hour)
		require.Len(t, r.seen(), 2)
		r.Wanted("llama", true, false) // and is lost
		require.Len(t, r.seen(), 3)
		require.NotEqual(t, got[0].head.Get("Idempotency-Key"), r.seen()[2].head.Get("Idempotency-Key"))
		require.InDelta(t, 3, r.counted("succeeded"), 0)
		require.Empty(t, r.failed())
	})
}

func TestANewWishWaitsForTheCooldownOfTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t)
		r.Set("llama", &Hook{URL: "https://hooks.example.com/wake", Cooldown: 10 * time.Second})
		r.Wanted("llama", true, false)
		time.Sleep(4 * time.Second)
		r.Wanted("llama", false, false)
		time.Sleep(4 * time.Second)
		r.Wanted("llama", true, false)
		require.Len(t, r.seen(), 1)
		time.Sleep(2 * time.Second)
		require.Len(t, r.seen(), 2)
		require.Equal(t, 10*time.Second, r.seen()[1].at)
	})
}

func TestNothingIsCalledWithoutAWishOrAHookOrWhileAReplicaIsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t)
		r.Wanted("llama", true, true)
		r.Wanted("other", true, false)
		time.Sleep(time.Hour)
		require.Empty(t, r.seen())

		r.Set("other", &Hook{URL: "https://hooks.example.com/other"}) // the map came after the need
		require.Len(t, r.seen(), 1)
		r.Replace(map[string]Hook{"llama": {URL: "https://hooks.example.com/llama"}})
		time.Sleep(time.Hour)
		require.Len(t, r.seen(), 1)
		r.Wanted("other", false, false)
		synctest.Wait()
		r.Webhooks.mu.Lock()
		defer r.Webhooks.mu.Unlock()
		require.Len(t, r.models, 1)
	})
}

func TestAMapThatIsPushedAgainCausesNoCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t)
		r.Wanted("llama", true, false)
		for range 5 {
			time.Sleep(time.Second)
			r.Replace(map[string]Hook{"llama": {Kind: "chat", URL: "https://hooks.example.com/wake?token=hush", Method: http.MethodPost}})
		}
		require.Len(t, r.seen(), 1)
		r.Replace(map[string]Hook{"llama": {URL: "https://hooks.example.com/v2", Method: http.MethodGet}})
		got := r.seen()
		require.Len(t, got, 2)
		require.Equal(t, "https://hooks.example.com/v2", got[1].url)
		require.Empty(t, got[1].body)
		require.Empty(t, got[1].head.Get("Content-Type"))
	})
}

func TestTroublesAreRetriedWithBackoffWhileWanted(t *testing.T) {
	t.Parallel()
	lost := func() (*http.Response, error) { return nil, errors.New("connection reset") }
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t, lost, answer(500), answer(503), answer(408), answer(429), answer(502))
		r.Wanted("llama", true, false)
		time.Sleep(55 * time.Second) // more than the waits can be, and less than the cooldown
		got := r.seen()
		require.Len(t, got, 7)
		for i, c := range got[1:] {
			require.Less(t, c.at-got[i].at, firstBackoff<<i)
			require.Equal(t, got[0].head.Get("Idempotency-Key"), c.head.Get("Idempotency-Key"))
		}
		require.InDelta(t, 1, r.counted("unreachable"), 0)
		require.InDelta(t, 5, r.counted("unavailable"), 0)
		require.InDelta(t, 1, r.counted("succeeded"), 0)
		require.Empty(t, r.failed())
		// The success started the cooldown.
		time.Sleep(got[6].at + time.Minute - 55*time.Second)
		require.Len(t, r.seen(), 8)
	})
}

func TestRetriesEndWithTheWish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t, answer(429, "Retry-After", "20"))
		r.Wanted("llama", true, false)
		require.Len(t, r.seen(), 1)
		r.Wanted("llama", false, false)
		time.Sleep(time.Hour)
		require.Len(t, r.seen(), 1)
	})
}

func TestRetryAfterIsRespectedUpToTheCooldown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		value    func() string
		at, slop time.Duration
	}{
		"seconds":  {func() string { return "20" }, 20 * time.Second, 0},
		"date":     {func() string { return time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat) }, 20 * time.Second, time.Second},
		"too long": {func() string { return "4000000000" }, time.Minute, 0},
		"nonsense": {func() string { return "soon" }, firstBackoff / 2, firstBackoff / 2},
		"past":     {func() string { return "Wed, 21 Oct 1998 07:28:00 GMT" }, firstBackoff / 2, firstBackoff / 2},
		"negative": {func() string { return "-5" }, firstBackoff / 2, firstBackoff / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newHookRig(t, answer(503, "Retry-After", c.value()))
				r.Wanted("llama", true, false)
				time.Sleep(61 * time.Second)
				require.GreaterOrEqual(t, len(r.seen()), 2)
				require.InDelta(t, c.at, r.seen()[1].at, float64(c.slop))
			})
		})
	}
}

func TestARefusalFailsTheWakeAndStartsTheCooldown(t *testing.T) {
	t.Parallel()
	for _, code := range []int{400, 401, 403, 404, 410, 422} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newHookRig(t, answer(code), answer(code))
				r.Wanted("llama", true, false)
				require.Len(t, r.failed(), 1)
				require.Regexp(t, `^llama: its wake hook answered 4\d\d$`, r.failed()[0])
				time.Sleep(59 * time.Second)
				require.Len(t, r.seen(), 1)
				time.Sleep(time.Second)
				require.Len(t, r.failed(), 2)
				require.InDelta(t, 2, r.counted("refused"), 0)
			})
		})
	}
}

// A hook that answers with a conflict has been called before by somebody else.
func TestAConflictIsASuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t, answer(409))
		r.Wanted("llama", true, false)
		time.Sleep(59 * time.Second)
		require.Len(t, r.seen(), 1)
		require.Empty(t, r.failed())
		require.InDelta(t, 1, r.counted("succeeded"), 0)
	})
}

// One hook may wake several models: it is told the one that most wait for, and its
// refusal is one for all.
func TestAHookOfSeveralModelsIsCalledOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t, answer(403))
		waiting := map[string]int{"b": 1, "c": 2}
		r.o.Demand = func(model string) int { return waiting[model] }
		r.Set("machine", &Hook{URL: "https://hooks.example.com/wake", Models: []string{"a", "b", "c"}})
		r.Wanted("machine", true, false)
		require.Len(t, r.seen(), 1)
		require.Contains(t, r.seen()[0].body, `"model":"c"`)
		require.Contains(t, r.seen()[0].body, `"demand":3`)
		require.Equal(t, []string{"a: its wake hook answered 403", "b: its wake hook answered 403", "c: its wake hook answered 403"}, r.failed())
	})
}

func TestARefusalIsNoFailureWhenAReplicaCameUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t, func() (*http.Response, error) {
			time.Sleep(5 * time.Second)
			return answer(404)()
		})
		r.Wanted("llama", true, false)
		time.Sleep(time.Second)
		r.Wanted("llama", true, true)
		time.Sleep(time.Minute)
		require.InDelta(t, 1, r.counted("refused"), 0)
		require.Empty(t, r.failed())
	})
}

func TestTheAnswerOfAnEarlierHookMeansNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t, func() (*http.Response, error) {
			time.Sleep(5 * time.Second)
			return answer(404)()
		})
		r.Wanted("llama", true, false)
		time.Sleep(time.Second)
		r.Set("llama", &Hook{URL: "https://hooks.example.com/right"})
		time.Sleep(4 * time.Second)
		got := r.seen()
		require.Len(t, got, 2)
		require.Equal(t, "https://hooks.example.com/right", got[1].url)
		require.Equal(t, 5*time.Second, got[1].at)
		require.Empty(t, r.failed())
	})
}

func TestTheBackoffHasBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tries           int
		cooldown, limit time.Duration
	}{{0, time.Hour, firstBackoff}, {3, time.Hour, 8 * firstBackoff}, {1 << 40, time.Hour, lastBackoff}, {9, 2 * time.Second, 2 * time.Second}, {9, 1, 1}} {
		var longest time.Duration
		for range 1000 {
			d := result{}.delay(&call{tries: c.tries, hook: &Hook{Cooldown: c.cooldown}})
			require.GreaterOrEqual(t, d, time.Duration(0))
			require.Less(t, d, c.limit)
			longest = max(longest, d)
		}
		require.GreaterOrEqual(t, longest, c.limit/2)
	}
}

// hang answers never.
type hang struct{}

func (hang) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func TestACallEndsAfterTenSecondsAndAtTheEndOfStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t)
		r.client.Transport = hang{}
		r.Wanted("llama", true, false)
		time.Sleep(callTimeout)
		require.InDelta(t, 1, r.counted("unreachable"), 0)
		time.Sleep(time.Second) // the next call has begun
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r.Stop(ctx)
		require.Equal(t, 3*time.Second, time.Since(begin))
		r.Wanted("llama", true, false)
		time.Sleep(time.Hour)
		require.InDelta(t, 2, r.counted("unreachable"), 0)
	})
}

func TestStopDoesNotWaitForACooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t)
		r.Wanted("llama", true, false)
		synctest.Wait()
		begin := time.Now()
		r.Stop(t.Context())
		require.Zero(t, time.Since(begin))
	})
}

func TestTheLogHasOneLinePerCallAndNoSecret(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t, func() (*http.Response, error) { return nil, errors.New("no route") }, answer(403))
		r.Wanted("llama", true, false)
		time.Sleep(10 * time.Second)
		require.Len(t, r.seen(), 2)
		lines := strings.Split(strings.TrimSpace(r.log.String()), "\n")
		require.Len(t, lines, 2)
		require.NotContains(t, r.log.String(), "hush")
		require.NotContains(t, r.log.String(), "/wake")
		for i, want := range []map[string]any{
			{"level": "warn", "outcome": "unreachable", "status": 0.0, "try": 1.0, "reason": "no route"},
			{"level": "warn", "outcome": "refused", "status": 403.0, "try": 2.0},
		} {
			var got map[string]any
			require.NoError(t, json.Unmarshal([]byte(lines[i]), &got))
			require.Equal(t, "llama", got["model"])
			require.Equal(t, "hooks.example.com", got["host"])
			for k, v := range want {
				require.Equal(t, v, got[k], k)
			}
		}
	})
}

func TestEveryOutcomeHasASeriesFromTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newHookRig(t)
		n, err := testutil.GatherAndCount(r.reg, "hivenet_webhook_calls_total")
		require.NoError(t, err)
		require.Equal(t, len(outcomes), n)
		problems, err := testutil.GatherAndLint(r.reg)
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}
