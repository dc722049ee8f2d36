// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
)

func render(t *testing.T) *bootstrapv3.Bootstrap {
	t.Helper()
	b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: t.TempDir()})
	require.NoError(t, err)
	return b
}

func yamlOf(t *testing.T, b *bootstrapv3.Bootstrap) string {
	t.Helper()
	text, err := envoy.YAML(b)
	require.NoError(t, err)
	return string(text)
}

func TestPlainKeepsTheEdgeAndDropsWhatHoldgateNeeds(t *testing.T) {
	t.Parallel()
	b := render(t)
	before := yamlOf(t, b)
	for _, gone := range []string{"ext_proc", "http_grpc", "rehold.sock", "DYNAMIC_METADATA"} {
		require.Contains(t, before, gone, "the check below must be able to fail")
	}
	require.NoError(t, plain(b, "127.0.0.1:8000"))
	after := yamlOf(t, b)
	for _, gone := range []string{"ext_proc", "http_grpc", "rehold.sock", "relay.sock", "DYNAMIC_METADATA", "cluster: destinations"} {
		require.NotContains(t, after, gone)
	}
	for _, kept := range []string{"num_retries: 1", "stream_idle_timeout", "cluster: backend", "port_value: 8000", "max_requests: 100000"} {
		require.Contains(t, after, kept)
	}
	require.NoError(t, b.ValidateAll())
}

func TestTheFloorMayRunWithoutAccessLog(t *testing.T) {
	t.Parallel()
	b := render(t)
	require.NoError(t, withoutAccessLog(b))
	text := yamlOf(t, b)
	require.NotContains(t, text, "http_grpc")
	require.Contains(t, text, "ext_proc")
}

func TestPlainRefusesABootstrapItDoesNotKnow(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, plain(&bootstrapv3.Bootstrap{}, "127.0.0.1:8000"), "edge")
	require.ErrorContains(t, plain(render(t), "backend:8000"), "address")
}

// TestEnvoyTakesEveryBootstrap has the real binary validate them.
func TestEnvoyTakesEveryBootstrap(t *testing.T) {
	t.Parallel()
	binary, err := envoy.Find(t.Context())
	if err != nil {
		t.Skipf("NO ENVOY, NOT CHECKED: %v", err)
	}
	for name, change := range map[string]change{
		"alone":                    func(b *bootstrapv3.Bootstrap) error { return plain(b, "127.0.0.1:8000") },
		"floor without access log": withoutAccessLog,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := render(t)
			require.NoError(t, change(b))
			require.NoError(t, binary.Validate(t.Context(), []byte(yamlOf(t, b))))
		})
	}
}
