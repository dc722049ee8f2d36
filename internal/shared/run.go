// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/pause"
)

const (
	// Beat is the interval at which a router writes that it lives, and its levels.
	Beat = time.Second
	// Life is how long a router counts after it has last written. The others notice its end at
	// their next beat, so that nothing is left of a router 5 s after it died.
	Life = 4 * time.Second
	// probeEvery is the interval at which a server that does not answer is tried. It doubles
	// up to maxProbeEvery each time the server fails again within steadyTime.
	probeEvery    = 100 * time.Millisecond
	maxProbeEvery = 2 * time.Second
	steadyTime    = 10 * time.Second
	// probeTimeout is how fast it must answer to be used again.
	probeTimeout = 50 * time.Millisecond
	// goodbyeTime limits the last call, with which a router leaves.
	goodbyeTime = 100 * time.Millisecond
)

// lifeText is Life in milliseconds, as scripts take it.
var lifeText = strconv.FormatInt(Life.Milliseconds(), 10)

// presence stores that a router lives, and returns the living ones.
var presence = NewScript("presence", LuaNow+`
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZRANGE', KEYS[1], 0, -1)
`)

// OnMessage has f called with each message of a channel. It must be called before Run.
func (c *Client) OnMessage(channel string, f func(message string)) {
	c.subscriptions[c.Key(channel)] = f
}

// OnBeat has f called at each beat while the client is up, and when it went up. It must be
// called before Run.
func (c *Client) OnBeat(f func(ctx context.Context)) { c.onBeat = append(c.onBeat, f) }

// OnUp has f called when the client goes up or down. It must be called before Run.
func (c *Client) OnUp(f func(up bool)) { c.onUp = append(c.onUp, f) }

// Go has f called on a goroutine of its own, which Run waits for. f must return when ctx ends.
// It must be called before Run.
func (c *Client) Go(f func(ctx context.Context)) { c.parts = append(c.parts, f) }

// Run connects, and keeps this router among the living ones, until ctx ends. Then it
// leaves and closes the connections.
func (c *Client) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, part := range c.parts {
		running.Go(func() { part(ctx) })
	}
	for ctx.Err() == nil {
		if c.tryServer(ctx) == nil {
			running.Go(func() { c.receive(ctx) })
			c.beats(ctx)
			c.leave(context.WithoutCancel(ctx))
			return
		}
		pause.For(ctx, probeEvery)
	}
}

// tryServer tries whether the server can be used, and logs why not.
func (c *Client) tryServer(ctx context.Context) error {
	err := c.ask(ctx)
	if err != nil && ctx.Err() == nil {
		c.logOutage(err)
	}
	return err
}

// ask connects unless that was done, and has the server store that this router lives: one that
// only answers, such as a replica or one without memory, is of no use.
func (c *Client) ask(ctx context.Context) error {
	if c.server.Load() == nil {
		if err := c.connect(); err != nil {
			return err
		}
	}
	err := failure(c.attempt(ctx, "probe", probeTimeout, func(ctx context.Context, s valkey.Client) valkey.ValkeyResult {
		return presence.lua.Exec(ctx, s, c.presenceKeys(), []string{c.id, lifeText})
	}))
	if err == nil {
		c.wentUp()
	}
	return err
}

// presenceKeys returns the keys of presence.
func (c *Client) presenceKeys() []string { return []string{c.Key("routers")} }

// beats calls beat each Beat until ctx ends. While the server does not answer it tries the server instead.
func (c *Client) beats(ctx context.Context) {
	tick := time.NewTicker(Beat)
	defer tick.Stop()
	every, up := probeEvery, time.Now()
	for {
		if c.Up() {
			c.beat(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-c.probe:
			every = nextProbe(every, time.Since(up))
			for pause.For(ctx, every); ctx.Err() == nil && c.tryServer(ctx) != nil; {
				pause.For(ctx, every)
			}
			up = time.Now()
		}
	}
}

// nextProbe returns the interval of the probes of a server that was used for a time, from the
// interval before.
func nextProbe(before, used time.Duration) time.Duration {
	if used >= steadyTime {
		return probeEvery
	}
	return min(2*before, maxProbeEvery)
}

// beat writes that this router lives, and calls the callbacks.
func (c *Client) beat(ctx context.Context) {
	ids, err := presence.RunSlowly(ctx, c, c.presenceKeys(), []string{c.id, lifeText}).AsStrSlice()
	if err != nil {
		return // it is counted, and the next beat tries again
	}
	c.setRouters(ids)
	c.count(len(ids))
	for _, f := range c.onBeat {
		f(ctx)
	}
	c.upOnce.Do(func() { close(c.first) })
}

// count notes how many routers a beat found.
func (c *Client) count(n int) {
	c.fewer++
	if n >= c.LastRouters() || time.Duration(c.fewer)*Beat >= Life {
		c.counted.Store(int64(n))
		c.fewer = 0
	}
}

// leave removes this router from the living ones.
func (c *Client) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbyeTime)
	defer cancel()
	_ = c.DoSlowly(ctx, "leave", func(b valkey.Builder) valkey.Completed {
		return b.Zrem().Key(c.Key("routers")).Member(c.id).Build()
	}).Error()
	(*c.server.Load()).Close()
}

// receive subscribes to the channels, again whenever the connection is lost, until ctx ends.
func (c *Client) receive(ctx context.Context) {
	channels := make([]string, 0, len(c.subscriptions))
	for name := range c.subscriptions {
		channels = append(channels, name)
	}
	if len(channels) == 0 {
		return
	}
	for said := false; ctx.Err() == nil; {
		// A connection of its own, so that no message delays a call.
		server, release := (*c.server.Load()).Dedicate()
		err := server.Receive(ctx, server.B().Subscribe().Channel(channels...).Build(), func(m valkey.PubSubMessage) {
			if f := c.subscriptions[m.Channel]; f != nil {
				f(m.Message)
			}
		})
		release()
		if _, refused := valkey.IsValkeyErr(err); refused {
			c.metrics.errors.WithLabelValues("subscribe").Inc()
			if !said {
				said = true
				c.log.Error().Err(err).Msg("--shared: the server sends this router no messages: it knows late what the other routers tell it")
			}
		}
		pause.For(ctx, probeEvery)
	}
}
