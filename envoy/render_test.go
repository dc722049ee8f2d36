// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenConfigs are the configurations whose bootstraps are kept in testdata,
// and which the real binary validates.
var goldenConfigs = map[string]Config{
	"unix":     {EdgeListen: "0.0.0.0:8080", LanesDir: "/run/holdgate"},
	"tcp":      {EdgeListen: "127.0.0.1:0", LanesDir: "/run/holdgate", ExtProc: "127.0.0.1:9001", AdminListen: "127.0.0.1:9901"},
	"identity": {EdgeListen: "0.0.0.0:8080", LanesDir: "/run/holdgate", IdentityMetadata: "envoy.filters.http.jwt_authn/claims"},
	"name":     {EdgeListen: "127.0.0.1:8080", LanesDir: "/run/holdgate", ExtProc: "holdgate.models.svc:9001"},
	"ipv6": {
		EdgeListen: "[::]:8080", AdminListen: "[::1]:9901", LanesDir: "/run/holdgate", ExtProc: "[::1]:9001",
		MaxRequestBytes: 64 << 20, HoldMax: 5 * time.Minute, HeapBytes: 512 << 20,
	},
}

func TestRenderedBootstrapsAreTheGoldenOnes(t *testing.T) {
	t.Parallel()
	for name, c := range goldenConfigs {
		file := filepath.Join("testdata", name+".yaml")
		b, err := Render(c)
		require.NoError(t, err, name)
		text, err := YAML(b)
		require.NoError(t, err, name)
		if *update {
			require.NoError(t, os.WriteFile(file, text, 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(text), "%s: run go test ./envoy -update when the change is wanted", name)
	}
}
