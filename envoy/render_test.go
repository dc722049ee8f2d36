// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldenConfigs are the configurations whose bootstraps are kept in testdata and
// validated by the real binary.
var goldenConfigs = map[string]Config{
	"unix":     {EdgeListen: "0.0.0.0:8080", LanesDir: "/run/holdgate"},
	"tcp":      {EdgeListen: "127.0.0.1:0", LanesDir: "/run/holdgate", ExtProc: "127.0.0.1:9001", AdminListen: "127.0.0.1:9901", ProxyProtocol: true},
	"identity": {EdgeListen: "0.0.0.0:8080", LanesDir: "/run/holdgate", IdentityMetadata: "envoy.filters.http.jwt_authn/claims"},
	"name":     {EdgeListen: "127.0.0.1:8080", LanesDir: "/run/holdgate", ExtProc: "holdgate.models.svc:9001", ExtProcInsecure: true, TrustedHops: 2},
	"pools":    {EdgeListen: "0.0.0.0:8080", LanesDir: "/run/holdgate", Pools: []string{"qwen=127.0.0.1:9002", "llama=picker.models.svc:9002"}, PoolInsecure: true},
	"ipv6": {
		EdgeListen: "[::]:8080", AdminListen: "[::1]:9901", LanesDir: "/run/holdgate", ExtProc: "[::1]:9001",
		MaxRequestBytes: 64 << 20, HoldMax: 5 * time.Minute, HeapBytes: 512 << 20,
	},
}

// tlsConfig has certificates on both sides.
var tlsConfig = Config{
	EdgeListen: "0.0.0.0:8443", LanesDir: "/run/holdgate", SecretsDir: "/etc/envoy", ExtProc: "holdgate.models.svc:9001",
	EdgeCertFile: "/certs/edge.pem", EdgeKeyFile: "/certs/edge-key.pem",
	ExtProcCertFile: "/certs/envoy.pem", ExtProcKeyFile: "/certs/envoy-key.pem", ExtProcCAFile: "/certs/ca.pem",
}

// requireSame compares what was read with what was rendered. A diff costs seconds under
// the race detector, so it is made only when there is one.
func requireSame(t *testing.T, want, got proto.Message, name string) {
	t.Helper()
	if !proto.Equal(want, got) {
		require.Empty(t, cmp.Diff(want, got, protocmp.Transform()), "%s: what YAML writes is what was rendered", name)
	}
}

func TestARenderedBootstrapWithTLSIsReadBack(t *testing.T) {
	t.Parallel()
	want, err := Render(tlsConfig)
	require.NoError(t, err)
	text, err := YAML(want)
	require.NoError(t, err)
	got := parsed(t, text)
	requireSame(t, want, got, "TLS")
	require.Empty(t, Check(SetupOf(got), CheckOptions{Budget: tlsConfig.withDefaults().HoldMax}).Findings)
	for _, line := range []string{"path: /etc/envoy/edge-tls.yaml", "path: /etc/envoy/extproc-tls.yaml", "path: /etc/envoy/extproc-ca.yaml", "exact: holdgate.models.svc", "sni: holdgate.models.svc", "- h2"} {
		require.Contains(t, string(text), line)
	}
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
