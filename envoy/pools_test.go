// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBadPoolsAreNamed(t *testing.T) {
	t.Parallel()
	for pools, want := range map[string]string{
		"qwen":                               "must be NAME=host:port",
		"a b=127.0.0.1:1":                    "the name must have up to 63 letters",
		"a=127.0.0.1":                        "must be unix:///path or host:port",
		"a=127.0.0.1:1,a=127.0.0.1:2":        "a is given twice",
		"a=picker.models.svc:9002":           "is an address that others can reach",
		"a=https://picker.models.svc:9002":   "the certificate is not checked",
		"a=https://unix:///run/p.sock":       "there is no TLS on a unix socket",
		"a=https://127.0.0.1:9002":           "",
		strings.Repeat("a", 60) + "=[::1]:1": "",
	} {
		_, err := Render(Config{EdgeListen: "127.0.0.1:0", LanesDir: "/run/holdgate", Pools: strings.Split(pools, ",")})
		if want == "" {
			require.NoError(t, err, pools)
			continue
		}
		require.Len(t, problemsOf(err), 1, pools)
		require.Equal(t, "Pools", problemsOf(err)[0].Path)
		require.ErrorContains(t, err, want, pools)
	}
	_, err := Render(Config{EdgeListen: "127.0.0.1:0", LanesDir: "/run/" + strings.Repeat("x", 60), Pools: []string{strings.Repeat("a", 60) + "=127.0.0.1:1"}})
	require.ErrorContains(t, err, "a unix socket's path has at most 107 bytes")
}
