// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestEngineThatIsNotHealthyIsToldOf(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		exec   []string
		health int64
		times  []time.Duration
		want   string
		why    string
	}{
		"nobody listens": {nil, 0, []time.Duration{5 * time.Second, 65 * time.Second, 125 * time.Second}, "--backend-url, and is --health-path right?", "connection refused"},
		"no such path":   {nil, http.StatusNotFound, []time.Duration{5 * time.Second, 65 * time.Second, 125 * time.Second}, "--backend-url, and is --health-path right?", "/health answers Not Found"},
		"just started":   {[]string{"engine"}, 0, []time.Duration{time.Minute, 2 * time.Minute}, "does it listen on this port", "connection refused"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, log := newNetwork(t), newEvents(t)
				n.health.Store(c.health)
				cfg := n.config()
				cfg.Log, cfg.Exec = zerolog.New(log), c.exec
				a, err := newAgent(t.Context(), cfg.withDefaults())
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = a.health.await(ctx, a.unhealthyWarning()) }()
				begin := time.Now()
				for i, at := range c.times {
					after(at - time.Millisecond - time.Since(begin))
					require.Empty(t, log.take(), i)
					after(2*time.Second + time.Millisecond)
					said := log.take()
					require.Len(t, said, 1, i)
					require.Contains(t, said[0].Message, c.want)
					require.Contains(t, said[0].Error, c.why)
				}
			})
		})
	}
}
