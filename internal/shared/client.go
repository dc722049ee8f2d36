// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/valkey-io/valkey-go"
)

const (
	// CallTimeout is how long a call on behalf of a request may take.
	CallTimeout = 5 * time.Millisecond
	// slowTimeout is how long a call may take that no request waits for.
	slowTimeout = time.Second
	// largeTimeout is how long such a call with large values may take.
	largeTimeout = 5 * time.Second
)

// ErrDown is the error of calls while the server does not answer.
var ErrDown = errors.New("the shared state is not available")

// Options are the options of a Client. Address, Registerer and Log are required.
type Options struct {
	Address    Address
	Registerer prometheus.Registerer
	Prefix     string // of the metrics
	Log        zerolog.Logger
}

// Client makes calls to the server. It is safe for concurrent use.
type Client struct {
	option  valkey.ClientOption
	prefix  string
	id      string
	log     zerolog.Logger
	metrics metrics
	breaker *breaker

	server  atomic.Pointer[valkey.Client] // nil before the first connection
	routers atomic.Pointer[[]string]      // the living routers, sorted; only this one while down
	counted atomic.Int64                  // how many routers there are, as LastRouters returns it
	fewer   int                           // beats in a row that found fewer; used only by beat
	said    atomic.Value                  // the outage that was logged last since the client was up
	probe   chan struct{}                 // receives a token when the client has gone down
	first   chan struct{}                 // closed after the first beat

	// Set before Run.
	subscriptions map[string]func(message string)
	onBeat        []func(ctx context.Context)
	onUp          []func(up bool)
	parts         []func(ctx context.Context)

	upOnce sync.Once // closes first
}

// New returns a client, which connects when it runs.
func New(o Options) (*Client, error) {
	option, prefix, err := o.Address.options()
	if err != nil {
		return nil, err
	}
	if option.SelectDB != 0 {
		prefix += ":" + strconv.Itoa(option.SelectDB) // a server has the same channels in all databases
	}
	c := &Client{
		option: option, prefix: prefix, id: uuid.NewString(), log: o.Log,
		metrics: newMetrics(o.Prefix, o.Registerer), breaker: newBreaker(),
		probe: make(chan struct{}, 1), first: make(chan struct{}),
		subscriptions: map[string]func(string){},
	}
	c.setRouters(nil)
	c.counted.Store(1)
	return c, nil
}

// ID returns the name of this router among those that share the state. It is new at each
// start.
func (c *Client) ID() string { return c.id }

// Key returns the name of a key or a channel. The parts must not come from a request, or
// be hashed.
func (c *Client) Key(parts ...string) string {
	return "{" + c.prefix + "}:" + strings.Join(parts, ":")
}

// Spread returns the name of a key that is in a slot of its own, for keys that a cluster
// should spread over its servers. A script must not use it together with others.
func (c *Client) Spread(parts ...string) string {
	return "{" + c.prefix + ":" + strings.Join(parts, ":") + "}"
}

// Up reports whether the server answers.
func (c *Client) Up() bool { return !c.breaker.open.Load() }

// Routers returns the ids of the routers that share the state, this one among them, sorted. It
// is this one alone while the server does not answer.
func (c *Client) Routers() []string { return *c.routers.Load() }

// LastRouters returns how many routers shared the state when the server last answered, this one
// among them. A smaller number counts once the server has said it for Life: one that was lost and
// is back learns of the routers only at their next beats.
func (c *Client) LastRouters() int { return int(c.counted.Load()) }

// AwaitUp waits until the client was up once and has read what the other routers have written, or
// ctx ends.
func (c *Client) AwaitUp(ctx context.Context) {
	select {
	case <-c.first:
	case <-ctx.Done():
	}
}

// Do makes a call on behalf of a request. name is the metrics' label.
func (c *Client) Do(ctx context.Context, name string, build func(b valkey.Builder) valkey.Completed) valkey.ValkeyResult {
	return c.call(ctx, name, CallTimeout, func(ctx context.Context, s valkey.Client) valkey.ValkeyResult {
		return s.Do(ctx, build(s.B()))
	})
}

// DoSlowly makes a call that no request waits for.
func (c *Client) DoSlowly(ctx context.Context, name string, build func(b valkey.Builder) valkey.Completed) valkey.ValkeyResult {
	return c.call(ctx, name, slowTimeout, func(ctx context.Context, s valkey.Client) valkey.ValkeyResult {
		return s.Do(ctx, build(s.B()))
	})
}

// Publish sends a message to the subscriptions of all routers, this one among them. A message
// may be lost.
func (c *Client) Publish(ctx context.Context, channel, message string) error {
	return c.DoSlowly(ctx, "publish", func(b valkey.Builder) valkey.Completed {
		return b.Publish().Channel(c.Key(channel)).Message(message).Build()
	}).Error()
}

// call makes a call unless the client is down.
func (c *Client) call(ctx context.Context, name string, timeout time.Duration, do func(context.Context, valkey.Client) valkey.ValkeyResult) valkey.ValkeyResult {
	if !c.Up() {
		return valkey.NewErrorResult(ErrDown)
	}
	return c.attempt(ctx, name, timeout, do)
}

// attempt makes a call. It returns when the time is over even if the library does not.
func (c *Client) attempt(ctx context.Context, name string, timeout time.Duration, do func(context.Context, valkey.Client) valkey.ValkeyResult) valkey.ValkeyResult {
	server := c.server.Load()
	if server == nil {
		return valkey.NewErrorResult(ErrDown)
	}
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := make(chan valkey.ValkeyResult, 1)
	go func() { answer <- do(limited, *server) }()
	var result valkey.ValkeyResult
	select {
	case result = <-answer:
	case <-limited.Done():
		result = valkey.NewErrorResult(limited.Err())
	}
	c.metrics.seconds.WithLabelValues(name).Observe(time.Since(begin).Seconds())
	err := failure(result)
	if err != nil && ctx.Err() != nil {
		return result // the caller gave up
	}
	if err != nil {
		c.metrics.errors.WithLabelValues(name).Inc()
	}
	if c.breaker.note(err, time.Now()) {
		c.wentDown(err)
	}
	return result
}

// failure returns the error of a result unless it is an answer of the server to a call that it
// understood, such as that there is no value.
func failure(r valkey.ValkeyResult) error {
	err := r.Error()
	if err == nil || valkey.IsValkeyNil(err) {
		return nil
	}
	return err
}

// wentDown is called when the breaker opened.
func (c *Client) wentDown(err error) {
	c.metrics.up.Set(0)
	c.setRouters(nil)
	c.logOutage(err)
	select {
	case c.probe <- struct{}{}:
	default:
	}
	for _, f := range c.onUp {
		f(false)
	}
}

// wentUp is called when the server answers again.
func (c *Client) wentUp() {
	if !c.breaker.close() {
		return
	}
	c.metrics.up.Set(1)
	c.said.Store(outage{})
	c.log.Info().Msg("--shared: the server answers: this router shares its state")
	for _, f := range c.onUp {
		f(true)
	}
}

// setRouters sets the living routers; this one always lives.
func (c *Client) setRouters(ids []string) {
	if !slices.Contains(ids, c.id) {
		ids = append(ids, c.id)
	}
	slices.Sort(ids)
	c.routers.Store(&ids)
	c.metrics.routers.Set(float64(len(ids)))
}

// connect makes the library's client. The library connects again by itself later.
func (c *Client) connect() error {
	server, err := valkey.NewClient(c.option)
	if err != nil {
		if server != nil {
			server.Close()
		}
		return fmt.Errorf("connecting: %w", err)
	}
	c.server.Store(&server)
	return nil
}
