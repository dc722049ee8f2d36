// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"cmp"
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// DefaultCooldown is the cooldown of a hook if none is configured.
const DefaultCooldown = time.Minute

// Hook is a webhook that wakes a model, or several at once.
type Hook struct {
	// Models are the models that it wakes; empty: only the model that it is set for.
	Models []string
	// Kind is sent in the body, unless it is empty.
	Kind string
	URL  string
	// Method is POST, or GET, which has no body. Empty means POST.
	Method string
	// Cooldown is the shortest time between two answered calls. 0 means the default.
	Cooldown time.Duration
}

// WebhookOptions are the options of Webhooks. Demand and OnFailed may be called at any
// time, from any goroutine.
type WebhookOptions struct {
	// Demand returns how many requests wait for the model.
	Demand func(model string) int
	// OnFailed is called when a hook refused a call. Clients may see the reason.
	OnFailed func(model, reason string)
	// Cooldown is for hooks without one. 0 means DefaultCooldown.
	Cooldown time.Duration
	// Claims let one router of the site call a hook. nil means that this router is alone.
	Claims Claims
	// Headers are the secret headers. nil means none.
	Headers *HeadersFile
	// TLS is for calls to https. nil means the system's authorities.
	TLS *tls.Config
	// Transport makes the calls. nil means an http.Transport with TLS.
	Transport  http.RoundTripper
	Registerer prometheus.Registerer
	Prefix     string
	Log        zerolog.Logger
}

// Webhooks calls the hooks of models that are wanted while no replica of them is up.
type Webhooks struct {
	o       WebhookOptions
	client  *http.Client
	metrics callMetrics

	callCtx     context.Context // of all calls; ends when Stop no longer waits for them
	cancelCalls context.CancelFunc
	stopping    chan struct{}
	stop        sync.Once
	wg          sync.WaitGroup

	mu     sync.Mutex
	models map[string]*model
}

// model is the state of one model. The lock guards everything but its name.
type model struct {
	name       string
	hook       *Hook // nil without one
	last       Hook  // the last hook that was set, even if it was removed
	wanted, up bool

	since     time.Time // when the need began
	key       string    // the Idempotency-Key of the need; empty without a need
	notBefore time.Time // the earliest time of the next call
	tries     int       // failed calls in a row
	refused   bool      // the last call was refused
	running   bool      // its goroutine runs
	changed   chan struct{}
}

// due reports whether the hook must be called as soon as notBefore allows.
func (m *model) due() bool { return m.hook != nil && m.wanted && !m.up }

// NewWebhooks returns Webhooks without hooks.
func NewWebhooks(o WebhookOptions) *Webhooks {
	o.Cooldown = cmp.Or(o.Cooldown, DefaultCooldown)
	w := &Webhooks{
		o: o, client: newClient(o), metrics: newCallMetrics(o.Prefix, o.Registerer),
		stopping: make(chan struct{}), models: map[string]*model{},
	}
	w.callCtx, w.cancelCalls = context.WithCancel(context.Background()) //nolint:forbidigo // calls outlive the caller of Wanted; Stop ends them
	return w
}

// Replace sets the hooks of models and removes all others, with the needs of their
// models.
func (w *Webhooks) Replace(hooks map[string]Hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, m := range w.models {
		if _, ok := hooks[name]; !ok {
			m.wanted, m.key = false, ""
			w.setHook(name, nil)
		}
	}
	for name, hook := range hooks {
		w.setHook(name, &hook)
	}
}

// setHook sets the hook of a model, nil for none. A hook that differs from the last one is called
// without regard to the cooldown and the failures of the last one. The lock must be held.
func (w *Webhooks) setHook(name string, hook *Hook) {
	m := w.model(name)
	defer w.afterChange(m)
	if hook == nil {
		m.hook = nil
		return
	}
	h := *hook
	h.Method = cmp.Or(h.Method, http.MethodPost)
	h.Cooldown = cmp.Or(h.Cooldown, w.o.Cooldown)
	// The same hook keeps its cooldown: pushing a map again must not cause a call.
	if !h.sameCall(m.last) {
		m.notBefore, m.tries, m.refused = time.Time{}, 0, false
	}
	m.hook, m.last = &h, h
}

// sameCall reports whether two hooks make the same call.
func (h Hook) sameCall(other Hook) bool { return h.URL == other.URL && h.Method == other.Method }

// Wanted sets whether the model is wanted, and whether any replica of it is up. It must be
// called after each change of either.
func (w *Webhooks) Wanted(name string, wanted, up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.model(name)
	m.wanted, m.up = wanted, up
	switch need := wanted && !up; {
	case !need:
		m.key = ""
	case m.key == "":
		m.key, m.since, m.tries = uuid.NewString(), time.Now(), 0
	}
	w.afterChange(m)
}

// Refused reports whether the last call of a model's hook was refused.
func (w *Webhooks) Refused(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.models[name]
	return m != nil && m.refused
}

// Stop starts no more calls and waits for running ones until ctx ends; then it cancels them.
func (w *Webhooks) Stop(ctx context.Context) {
	w.stop.Do(func() {
		w.mu.Lock()
		close(w.stopping)
		w.mu.Unlock()
	})
	defer context.AfterFunc(ctx, w.cancelCalls)()
	w.wg.Wait()
	w.cancelCalls()
	w.client.CloseIdleConnections()
}

// model returns the state of a model, and adds it if there is none. The lock must be held.
func (w *Webhooks) model(name string) *model {
	m := w.models[name]
	if m == nil {
		m = &model{name: name, changed: make(chan struct{}, 1)}
		w.models[name] = m
	}
	return m
}

// afterChange must be called after each change of a model's state. It notifies the model's
// goroutine, or starts one if a call is due, or removes a model that is no longer needed. The
// lock must be held.
func (w *Webhooks) afterChange(m *model) {
	switch {
	case m.running:
		select {
		case m.changed <- struct{}{}:
		default:
		}
	case m.due() && !w.isStopping():
		m.running = true
		w.wg.Go(func() { w.run(m) })
	case m.hook == nil && !m.wanted:
		delete(w.models, m.name)
	}
}

func (w *Webhooks) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// run calls the hook while it is due.
func (w *Webhooks) run(m *model) {
	var failed *call // the last call, unless it is done
	for {
		c, wait := w.next(m)
		switch {
		case c == nil:
			w.release(failed)
			return
		case wait > 0:
			w.pause(m, wait)
		case w.claim(m, c):
			failed = w.attempt(m, c)
		}
	}
}

// attempt makes a call, and returns it unless it is done.
func (w *Webhooks) attempt(m *model, c *call) *call {
	r := w.call(c)
	again := c.hook.Cooldown
	if r.outcome.retryable() {
		again = r.delay(c)
	}
	w.record(m, c, r, again)
	w.end(c, r.endOf(again))
	if r.outcome.retryable() {
		return c
	}
	return nil
}

// next returns the next call and the time until it must be made, or nil if run must return.
func (w *Webhooks) next(m *model) (*call, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !m.due() || w.isStopping() {
		m.running = false
		w.afterChange(m)
		return nil, 0
	}
	models := m.hook.Models
	if len(models) == 0 {
		models = []string{m.name}
	}
	return &call{name: m.name, models: models, hook: m.hook, key: m.key, since: m.since, tries: m.tries}, time.Until(m.notBefore)
}

// pause waits for d, or until the model changes.
func (w *Webhooks) pause(m *model, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.changed:
	case <-w.stopping:
	}
}

// record records the result of a call that may be made again after a time.
func (w *Webhooks) record(m *model, c *call, r result, again time.Duration) {
	w.mu.Lock()
	failed := false
	if m.last.sameCall(*c.hook) { // else the hook was replaced meanwhile
		m.notBefore = time.Now().Add(again)
		m.refused = r.outcome == refused
		failed = m.refused && !m.up
		if m.tries++; !r.outcome.retryable() {
			m.tries = 0
		}
	}
	w.mu.Unlock()
	if failed {
		w.fail(c, r.reason)
	}
}

// fail reports that a call was refused.
func (w *Webhooks) fail(c *call, reason string) {
	for _, model := range c.models {
		w.o.OnFailed(model, reason)
	}
}
