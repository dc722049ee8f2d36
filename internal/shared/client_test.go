// SPDX-License-Identifier: Apache-2.0

package shared_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

func TestMain(m *testing.M) { valkeytest.VerifyNoLeaks(m) }

func get(c *shared.Client, ctx context.Context, key string) (string, error) {
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
		_, err := get(c, t.Context(), "none")
		return valkey.IsValkeyNil(err)
	}
	require.Eventually(t, answers, 5*time.Second, time.Millisecond)

	server.Stop()
	require.Eventually(t, func() bool {
		_, _ = get(c, t.Context(), "none")
		return !c.Up()
	}, 5*time.Second, time.Millisecond)
	_, err := get(c, t.Context(), "none")
	require.ErrorIs(t, err, shared.ErrDown)
	assert.Equal(t, []string{c.ID()}, c.Routers())

	server.Restart()
	require.Eventually(t, func() bool { return c.Up() && answers() }, 10*time.Second, 10*time.Millisecond)
	assert.GreaterOrEqual(t, ups.Load(), int32(2))
	assert.GreaterOrEqual(t, downs.Load(), int32(1))
}

func TestAServerThatIsSilentCostsACallItsTime(t *testing.T) {
	server := valkeytest.Start(t)
	c := server.Router(nil)
	resume := server.Pause()
	var slowest time.Duration
	for c.Up() {
		begin := time.Now()
		_, err := get(c, t.Context(), "none")
		require.Error(t, err)
		slowest = max(slowest, time.Since(begin))
	}
	t.Logf("the slowest call took %v", slowest)
	assert.Less(t, slowest, time.Second) // the limit is 5 ms; the machine may be busy
	resume()
	require.Eventually(t, c.Up, 10*time.Second, 10*time.Millisecond)
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
	_, err = get(c, ctx, "none")
	require.ErrorIs(t, err, shared.ErrDown)
	short, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	c.AwaitUp(short)
	assert.False(t, c.Up())
	cancel()
	<-done
	assert.Equal(t, 1, testutil.CollectAndCount(reg, "hivenet_shared_up"))
}

func TestRoutersKnowEachOther(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := server.Router(nil), server.Router(nil)
	require.Eventually(t, func() bool { return len(one.Routers()) == 2 && len(two.Routers()) == 2 }, 5*time.Second, 10*time.Millisecond)
	assert.Equal(t, one.Routers(), two.Routers())
}
