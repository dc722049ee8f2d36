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

// DefaultCooldown is the time between two calls for a model whose hook has no
// cooldown of its own.
const DefaultCooldown = time.Minute

// Hook is a webhook that wakes a model, or several at once.
type Hook struct {
	// Models are those that it wakes. None means the name that the hook goes by.
	Models []string
	// Kind stands in the body, unless it is empty.
	Kind string
	URL  string
	// Method is POST, or GET, which has no body. POST when empty.
	Method string
	// Cooldown is the shortest time between two calls that were answered. 0 means
	// the default.
	Cooldown time.Duration
}

// WebhookOptions is what Webhooks needs. Demand and OnFailed may be called at any
// time, from any goroutine.
type WebhookOptions struct {
	// Demand is how many requests wait for the model.
	Demand func(model string) int
	// OnFailed hears of a hook that refused. The reason is fit for a client's eyes.
	OnFailed func(model, reason string)
	// Cooldown is for hooks without one. 0 means DefaultCooldown.
	Cooldown time.Duration
	// Headers are secret headers. nil means none.
	Headers *HeadersFile
	// TLS is for calls to https. nil means the system's authorities.
	TLS *tls.Config
	// Transport makes the calls. nil means one of HTTP with TLS.
	Transport  http.RoundTripper
	Registerer prometheus.Registerer
	Prefix     string
	Log        zerolog.Logger
}

// Webhooks calls the hooks of models that are wanted while nothing of them is up.
type Webhooks struct {
	o       WebhookOptions
	client  *http.Client
	metrics callMetrics

	calls    context.Context // it ends calls whose time Stop does not wait for
	cut      context.CancelFunc
	stopping chan struct{}
	stop     sync.Once
	wg       sync.WaitGroup

	mu     sync.Mutex
	models map[string]*model
}

// model is what is known of one model. All but its name needs the lock.
type model struct {
	name       string
	hook       *Hook // nil without one
	last       Hook  // the one before hook was taken away, or hook itself
	wanted, up bool

	since   time.Time // of the wish
	key     string    // of the wish, empty without one
	again   time.Time // no call before
	tries   int       // calls in a row that are to be repeated
	refused bool      // the last call was
	running bool      // it has its goroutine
	changed chan struct{}
}

// due says whether the hook is to be called, as soon as the cooldown allows.
func (m *model) due() bool { return m.hook != nil && m.wanted && !m.up }

// NewWebhooks makes one without hooks.
func NewWebhooks(o WebhookOptions) *Webhooks {
	o.Cooldown = cmp.Or(o.Cooldown, DefaultCooldown)
	w := &Webhooks{
		o: o, client: newClient(o), metrics: newCallMetrics(o.Prefix, o.Registerer),
		stopping: make(chan struct{}), models: map[string]*model{},
	}
	w.calls, w.cut = context.WithCancel(context.Background()) //nolint:forbidigo // calls outlive whoever reports a wish; Stop ends them
	return w
}

// Replace gives the models their hooks and takes away all others, with what is
// known of their wishes.
func (w *Webhooks) Replace(hooks map[string]Hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, m := range w.models {
		if _, ok := hooks[name]; !ok {
			m.wanted, m.key = false, ""
			w.set(name, nil)
		}
	}
	for name, hook := range hooks {
		w.set(name, &hook)
	}
}

// set gives a model its hook, or takes it away with nil. A hook that is no longer the
// same is called without regard to the calls of the old one.
func (w *Webhooks) set(name string, hook *Hook) {
	m := w.model(name)
	defer w.settled(m)
	if hook == nil {
		m.hook = nil
		return
	}
	h := *hook
	h.Method = cmp.Or(h.Method, http.MethodPost)
	h.Cooldown = cmp.Or(h.Cooldown, w.o.Cooldown)
	// A map that is pushed again must not cause a call.
	if !h.calls(m.last) {
		m.again, m.tries, m.refused = time.Time{}, 0, false
	}
	m.hook, m.last = &h, h
}

// calls says whether two hooks make the same call.
func (h Hook) calls(other Hook) bool { return h.URL == other.URL && h.Method == other.Method }

// Wanted says whether the model should be up, and whether any replica of it is.
// It must be called after each change of either.
func (w *Webhooks) Wanted(name string, wanted, up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.model(name)
	m.wanted, m.up = wanted, up
	switch wish := wanted && !up; {
	case !wish:
		m.key = ""
	case m.key == "":
		m.key, m.since, m.tries = uuid.NewString(), time.Now(), 0
	}
	w.settled(m)
}

// Refused says whether the last call of a hook was refused.
func (w *Webhooks) Refused(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.models[name]
	return m != nil && m.refused
}

// Stop ends all waiting. Calls that are on their way may end until ctx does; then
// they are cut off.
func (w *Webhooks) Stop(ctx context.Context) {
	w.stop.Do(func() {
		w.mu.Lock()
		close(w.stopping)
		w.mu.Unlock()
	})
	defer context.AfterFunc(ctx, w.cut)()
	w.wg.Wait()
	w.cut()
	w.client.CloseIdleConnections()
}

// model needs the lock.
func (w *Webhooks) model(name string) *model {
	m := w.models[name]
	if m == nil {
		m = &model{name: name, changed: make(chan struct{}, 1)}
		w.models[name] = m
	}
	return m
}

// settled needs the lock. It comes after each change of a model.
func (w *Webhooks) settled(m *model) {
	switch {
	case m.running:
		select {
		case m.changed <- struct{}{}:
		default:
		}
	case m.due() && !w.ended():
		m.running = true
		w.wg.Go(func() { w.run(m) })
	case m.hook == nil && !m.wanted:
		delete(w.models, m.name)
	}
}

func (w *Webhooks) ended() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// run calls the hook as often as it is due, and ends when it is not.
func (w *Webhooks) run(m *model) {
	for {
		c, wait := w.next(m)
		switch {
		case c == nil:
			return
		case wait > 0:
			w.pause(m, wait)
		default:
			w.done(m, c, w.call(c))
		}
	}
}

// next gives the call to make and the time until then, or nil when run must end.
func (w *Webhooks) next(m *model) (*call, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !m.due() || w.ended() {
		m.running = false
		w.settled(m)
		return nil, 0
	}
	models := m.hook.Models
	if len(models) == 0 {
		models = []string{m.name}
	}
	return &call{models: models, hook: m.hook, key: m.key, since: m.since, tries: m.tries}, time.Until(m.again)
}

// pause waits for the time or a change.
func (w *Webhooks) pause(m *model, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.changed:
	case <-w.stopping:
	}
}

// done takes note of a call's end.
func (w *Webhooks) done(m *model, c *call, r result) {
	w.mu.Lock()
	failed := false
	switch {
	case !m.last.calls(*c.hook): // the hook of an earlier map
	case r.outcome.retried():
		m.refused = false
		m.tries++
		m.again = time.Now().Add(r.delay(c))
	default:
		m.tries = 0
		m.again = time.Now().Add(c.hook.Cooldown)
		m.refused = r.outcome == refused
		failed = m.refused && !m.up
	}
	w.mu.Unlock()
	if !failed {
		return
	}
	for _, model := range c.models {
		w.o.OnFailed(model, r.reason)
	}
}
