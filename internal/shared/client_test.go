// SPDX-License-Identifier: Apache-2.0

package shared_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

func TestMain(m *testing.M) { valkeytest.VerifyNoLeaks(m) }

func get(ctx context.Context, c *shared.Client, key string) (string, error) {
	return c.Do(ctx, "get", func(b valkey.Builder) valkey.Completed { return b.Get().Key(key).Build() }).ToString()
}

func TestCallsFailAtOnceWhileTheServerIsAway(t *testing.T) {
	server := valkeytest.Start(t)
	var ups, downs atomic.Int32
	c := server.Router(func(c *shared.Client) {
		c.OnUp(func(up bool) {
			if up {
				ups.Add(1)
			} else {
				downs.Add(1)
			}
		})
	})
	answers := func() bool {
		_, err := get(t.Context(), c, "none")
		return valkey.IsValkeyNil(err)
	}
	polltest.Until(t, "the server answers", answers)

	server.Stop()
	polltest.Until(t, "the client is down", func() bool {
		_, _ = get(t.Context(), c, "none")
		return !c.Up()
	})
	_, err := get(t.Context(), c, "none")
	require.ErrorIs(t, err, shared.ErrDown)
	require.Equal(t, []string{c.ID()}, c.Routers())

	server.Restart()
	polltest.Until(t, "the client is up again", func() bool { return c.Up() && answers() })
	require.GreaterOrEqual(t, ups.Load(), int32(2))
	require.GreaterOrEqual(t, downs.Load(), int32(1))
}

func TestAServerThatIsSilentCostsACallItsTime(t *testing.T) {
	server := valkeytest.Start(t)
	c := server.Router(nil)
	resume := server.Pause()
	var slowest time.Duration
	for c.Up() {
		begin := time.Now()
		_, err := get(t.Context(), c, "none")
		require.Error(t, err)
		slowest = max(slowest, time.Since(begin))
	}
	t.Logf("the slowest call took %v", slowest)
	require.Less(t, slowest, time.Second) // the limit is 5 ms; the machine may be busy
	resume()
	polltest.Until(t, "the client is up again", c.Up)
}

func TestAClientStartsWithoutItsServer(t *testing.T) {
	reg := prometheus.NewRegistry()
	c, err := shared.New(shared.Options{
		Address: shared.Address{URL: "valkey://127.0.0.1:1"}, Registerer: reg, Prefix: "hivenet_", Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	_, err = get(ctx, c, "none")
	require.ErrorIs(t, err, shared.ErrDown)
	short, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	c.AwaitUp(short)
	require.False(t, c.Up())
	cancel()
	<-done
	require.Equal(t, 1, testutil.CollectAndCount(reg, "hivenet_shared_up"))
}

func TestRoutersKnowEachOther(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := server.Router(nil), server.Router(nil)
	polltest.Until(t, "both routers know each other", func() bool { return len(one.Routers()) == 2 && len(two.Routers()) == 2 })
	require.Equal(t, one.Routers(), two.Routers())
}

// The number of routers by which a router alone divides what the site had left.
func TestTheLastNumberOfRoutersIsKept(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := server.Router(nil), server.Router(nil)
	polltest.Until(t, "both routers know each other", func() bool { return one.LastRouters() == 2 && two.LastRouters() == 2 })
	server.Stop()
	polltest.Until(t, "the server is missed", func() bool {
		_, _ = get(t.Context(), one, "none")
		return !one.Up()
	})
	require.Len(t, one.Routers(), 1)
	require.Equal(t, 2, one.LastRouters())
	server.Restart()
	polltest.Until(t, "both routers know each other again", func() bool {
		require.Equal(t, 2, one.LastRouters(), "also while the server knows of one")
		return len(one.Routers()) == 2
	})
}

func TestALateAnswerIsHandedIn(t *testing.T) {
	server := valkeytest.StartReal(t)
	c := server.Router(nil)
	script := shared.NewScript("test", "return ARGV[1]")
	answers := make(chan string, 1)
	run := func() {
		script.RunLate(t.Context(), c, []string{c.Key("none")}, []string{"hello"}, func(r valkey.ValkeyResult) {
			text, err := r.ToString()
			if err != nil {
				text = err.Error()
			}
			answers <- text
		})
	}
	run()
	require.Equal(t, "hello", <-answers)
	resume := server.Pause()
	run()
	require.Empty(t, answers)
	resume()
	require.Equal(t, "hello", <-answers)

	server.Stop()
	polltest.Until(t, "the server is missed", func() bool {
		run()
		<-answers
		return !c.Up()
	})
	run()
	require.Equal(t, shared.ErrDown.Error(), <-answers)
}

func TestRunWaitsForWhatGoStarted(t *testing.T) {
	server := valkeytest.Start(t)
	var ended atomic.Bool
	t.Cleanup(func() { require.True(t, ended.Load(), "Run has returned, and what Go started is over") })
	c := server.Router(func(c *shared.Client) {
		c.Go(func(ctx context.Context) {
			<-ctx.Done()
			ended.Store(true)
		})
	})
	require.True(t, c.Up())
	require.False(t, ended.Load())
}

func TestAScriptWithLargeValuesRunsApart(t *testing.T) {
	server := valkeytest.Start(t)
	c := server.Router(nil)
	script := shared.NewScript("test", `redis.call('SET', KEYS[1], ARGV[1]) return #ARGV[1]`)
	large := strings.Repeat("x", 4<<20)
	size, err := script.RunApart(t.Context(), c, []string{c.Key("large")}, []string{large}).AsInt64()
	require.NoError(t, err)
	require.EqualValues(t, len(large), size)
	back, err := shared.NewScript("test", `return redis.call('GET', KEYS[1])`).RunApart(t.Context(), c, []string{c.Key("large")}, nil).ToString()
	require.NoError(t, err)
	require.Equal(t, large, back)

	server.Stop()
	require.Error(t, script.RunApart(t.Context(), c, []string{c.Key("large")}, []string{large}).Error())
}
