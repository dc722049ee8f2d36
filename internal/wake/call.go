// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"bytes"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
)

const (
	// callTimeout is the timeout of one call, including reading the response.
	callTimeout = 10 * time.Second
	// firstBackoff is the longest wait before the first retry. It doubles with each retry,
	// up to lastBackoff and the cooldown.
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// maxAnswer is how many bytes of a response are read, so that the connection can be
	// reused. The content is ignored.
	maxAnswer = 64 << 10
	// maxRedirects is how many redirects of one call are followed.
	maxRedirects = 5
)

// outcome is how a call ended.
type outcome int

const (
	succeeded   outcome = iota
	refused             // a retry would be refused too: the hook or its URL is wrong
	unavailable         // 5xx, 408 or 429
	unreachable         // no answer
)

var outcomes = [...]string{succeeded: "succeeded", refused: "refused", unavailable: "unavailable", unreachable: "unreachable"}

func (o outcome) String() string  { return outcomes[o] }
func (o outcome) retryable() bool { return o == unavailable || o == unreachable }

// call is one call of a hook. It does not change while it is made.
type call struct {
	name   string // of the hook
	models []string
	hook   *Hook
	key    string
	since  time.Time
	tries  int // number of failed calls that this one retries
}

// result is the result of a call.
type result struct {
	outcome    outcome
	status     int
	err        error
	reason     string        // of a refusal; it contains no secret
	retryAfter time.Duration // from the response
}

// delay returns the time until the retry of a call: with full jitter, so that routers whose
// calls failed together do not retry together, and no less than the response's Retry-After.
func (r result) delay(c *call) time.Duration {
	limit := min(firstBackoff<<min(c.tries, 16), lastBackoff, c.hook.Cooldown)
	wait := rand.N(max(limit, 1)) //nolint:gosec // it need not be unpredictable
	return max(wait, min(r.retryAfter, c.hook.Cooldown))
}

func newClient(o WebhookOptions) *http.Client {
	transport := o.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: o.TLS, ForceAttemptHTTP2: true,
			MaxIdleConns: 100, MaxIdleConnsPerHost: 20, IdleConnTimeout: 2 * time.Minute, TLSHandshakeTimeout: callTimeout,
			MaxResponseHeaderBytes: maxAnswer,
		}
	}
	return &http.Client{Transport: transport, CheckRedirect: checkRedirect}
}

// checkRedirect allows a redirect only if the method, the scheme and the host stay the same,
// because the headers are secret.
func checkRedirect(next *http.Request, before []*http.Request) error {
	first := before[0]
	if len(before) > maxRedirects || next.Method != first.Method || next.URL.Scheme != first.URL.Scheme || next.URL.Host != first.URL.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

// call makes one call, and counts and logs it.
func (w *Webhooks) call(c *call) result {
	begin := time.Now()
	r := w.send(c)
	took := time.Since(begin)
	w.metrics.calls.WithLabelValues(r.outcome.String()).Inc()
	w.metrics.seconds.Observe(took.Seconds())
	w.report(c, r, took)
	return r
}

// report logs a call. It logs only the host of the URL: the path of many hooks contains a
// secret.
func (w *Webhooks) report(c *call, r result, took time.Duration) {
	level := zerolog.InfoLevel
	if r.outcome != succeeded {
		level = zerolog.WarnLevel
	}
	var host string
	if u, err := url.Parse(c.hook.URL); err == nil {
		host = u.Host
	}
	w.o.Log.WithLevel(level).Str("model", strings.Join(c.models, ",")).Str("method", c.hook.Method).Str("host", host).Str("idempotency_key", c.key).Int("try", c.tries+1).
		Stringer("outcome", r.outcome).Int("status", r.status).Stringer("took", took.Round(time.Millisecond)).AnErr("reason", r.err).Msg("called the wake hook")
}

func (w *Webhooks) send(c *call) result {
	ctx, cancel := context.WithTimeout(w.callCtx, callTimeout)
	defer cancel()
	req, err := w.request(ctx, c)
	if err != nil {
		return result{outcome: refused, err: err, reason: "its wake hook cannot be called"}
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return result{outcome: unreachable, err: withoutURL(err)}
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // only the status matters
	return resultOf(resp)
}

func (w *Webhooks) request(ctx context.Context, c *call) (*http.Request, error) {
	var body io.Reader
	if c.hook.Method != http.MethodGet {
		data, err := json.Marshal(w.notice(c), jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return nil, fmt.Errorf("writing the body: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, c.hook.Method, c.hook.URL, body)
	if err != nil {
		return nil, withoutURL(err)
	}
	req.Header.Set("User-Agent", "holdgate")
	req.Header.Set("Idempotency-Key", c.key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if w.o.Headers != nil {
		w.o.Headers.Current().addTo(req.URL, req.Header)
	}
	return req, nil
}

// notice is the body of a call.
type notice struct {
	Model       string    `json:"model"`
	Kind        string    `json:"kind,omitzero"`
	WantedSince time.Time `json:"wanted_since"`
	Demand      int       `json:"demand"`
}

// notice returns the body of a call: the model of the hook for which most requests wait, and
// how many requests wait for all its models.
func (w *Webhooks) notice(c *call) notice {
	n := notice{Model: c.models[0], Kind: c.hook.Kind, WantedSince: c.since.UTC()}
	most := 0
	for _, model := range c.models {
		waiting := w.o.Demand(model)
		n.Demand += waiting
		if waiting > most {
			n.Model, most = model, waiting
		}
	}
	return n
}

// resultOf returns the result of a call with this response.
func resultOf(resp *http.Response) result {
	r := result{status: resp.StatusCode}
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300, code == http.StatusConflict: // 409: the model is being woken already
		r.outcome = succeeded
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooManyRequests:
		r.outcome = unavailable
		r.retryAfter = retryAfter(resp.Header.Get("Retry-After"))
	case code >= 300 && code < 400:
		r.outcome = refused
		r.reason = fmt.Sprintf("its wake hook answered %d, a redirect that is not followed", code)
	default:
		r.outcome = refused
		r.reason = fmt.Sprintf("its wake hook answered %d", code)
	}
	return r
}

// retryAfter parses a Retry-After header: seconds or a date. It returns 0 if it is invalid.
func retryAfter(s string) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// withoutURL returns err without the URL, whose query may contain a secret.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

type callMetrics struct {
	calls   *prometheus.CounterVec
	seconds prometheus.Histogram
}

func newCallMetrics(prefix string, reg prometheus.Registerer) callMetrics {
	f := promauto.With(reg)
	m := callMetrics{
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "webhook_calls_total",
			Help: "Calls of wake hooks, by how they ended.",
		}, []string{"outcome"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name:    prefix + "webhook_seconds",
			Help:    "How long calls of wake hooks took, in seconds.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},

			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}),
	}
	for _, o := range outcomes {
		m.calls.WithLabelValues(o)
	}
	return m
}
