// SPDX-License-Identifier: Apache-2.0

package shared_test

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// A server that answers but stores nothing is not used: a replica, or one without memory. It is
// not taken for usable again and again either.
func TestAServerThatStoresNothingIsNotUsed(t *testing.T) {
	for name, tc := range map[string]struct{ refuse, accept []string }{
		"a replica":      {[]string{"REPLICAOF", "127.0.0.1", "1"}, []string{"REPLICAOF", "NO", "ONE"}},
		"without memory": {[]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := valkeytest.StartReal(t)
			command := administrator(t, server)
			var ups atomic.Int32
			c := server.Router(func(c *shared.Client) {
				c.OnUp(func(up bool) {
					if up {
						ups.Add(1)
					}
				})
			})
			write := shared.NewScript("test", `return redis.call('SET', KEYS[1], '1')`)
			writes := func() bool { return write.RunSlowly(t.Context(), c, []string{c.Key("x")}, nil).Error() == nil }
			require.True(t, writes())

			command(tc.refuse...)
			polltest.Until(t, "the client is down", func() bool { return !writes() && !c.Up() })
			before := ups.Load()
			for until := time.Now().Add(time.Second); time.Now().Before(until); {
				_ = writes()
				runtime.Gosched()
			}
			require.Equal(t, before, ups.Load(), "how often the client went up")

			command(tc.accept...)
			polltest.Until(t, "the client is up again", writes)
		})
	}
}

// A user that may not subscribe gets no messages, which is logged and counted.
func TestAServerThatSendsNoMessagesIsReported(t *testing.T) {
	server := valkeytest.StartReal(t)
	reg, log := prometheus.NewRegistry(), &logBuffer{}
	c, err := shared.New(shared.Options{
		Address: shared.Address{URL: server.URL()}, Registerer: reg, Prefix: "hivenet_", Log: zerolog.New(log),
	})
	require.NoError(t, err)
	c.OnMessage("test", func(string) {})
	administrator(t, server)("ACL", "SETUSER", "default", "-subscribe")
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { c.Run(ctx) })
	polltest.Until(t, "the refusals are counted", func() bool {
		return errorsOf(t, reg, "subscribe") > 1
	})
	require.True(t, c.Up())
	cancel()
	running.Wait()
	require.Equal(t, 1, strings.Count(log.String(), "sends this router no messages"))
}

// errorsOf returns how many errors of a call were counted.
func errorsOf(t *testing.T, reg *prometheus.Registry, call string) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "hivenet_shared_errors_total" && m.GetLabel()[0].GetValue() == call {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// administrator returns what makes calls to the server that must succeed.
func administrator(t *testing.T, server *valkeytest.Server) (command func(words ...string)) {
	t.Helper()
	admin, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Address()}, ForceSingleClient: true, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	return func(words ...string) {
		require.NoError(t, admin.Do(t.Context(), admin.B().Arbitrary(words...).Build()).Error())
	}
}

// A name that is kept does not keep the message that it came with.
func TestANameKeepsNoMessage(t *testing.T) { //nolint:paralleltest // it measures memory
	server := valkeytest.Start(t)
	b := newBoard(server)
	const messages, size = 100, 1 << 20
	value := strings.Repeat("x", size)
	before := heap()
	for i := range messages {
		require.NoError(t, b.client.Publish(t.Context(), "test", "other "+strconv.Itoa(i+1)+" 1 m"+strconv.Itoa(i)+value))
	}
	polltest.Until(t, "all messages have come", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.changed) >= messages
	})
	require.Less(t, int64(heap())-int64(before), int64(messages*size/4))
}

// heap returns the bytes of memory in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
