// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdgate/holdgate/internal/settings"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	socket  = "unix:///run/holdgate/extproc.sock"
	service = "holdgate.models.svc.cluster.local:9001"
)

// golden are the configurations whose manifests are kept in testdata. The module
// tools/manifests validates those files.
var golden = map[string]Config{
	"envoy-gateway":          {For: EnvoyGateway, Gateway: "public", Route: "models", ExtProc: service, TLSSecret: "holdgate-client"},
	"envoy-gateway-socket":   {For: EnvoyGateway, Gateway: "public", Route: "models", ExtProc: socket, Engines: "engines:8000", Example: true},
	"envoy-gateway-endpoint": {For: EnvoyGateway, Gateway: "public", Route: "models", ExtProc: service, TLSSecret: "holdgate-client", Destination: Endpoint, Engines: "engines:8000", Example: true},
	"envoy-gateway-plain":    {For: EnvoyGateway, Gateway: "public", Route: "models", ExtProc: "[fd00::1]:9001", Insecure: true},
	"ai-gateway":             {For: AIGateway, Gateway: "public", Route: "models", ExtProc: service, TLSSecret: "holdgate-client"},
	"istio":                  {For: Istio, Gateway: "public", ExtProc: service, TLSSecret: "holdgate-client"},
	"istio-socket":           {For: Istio, Gateway: "public", Route: "models", ExtProc: socket, Engines: "engines:8000", Example: true},
	"istio-plain":            {For: Istio, Gateway: "public", ExtProc: "10.0.0.1:9001", Insecure: true},
	"llm-d":                  {For: LLMD, ExtProc: service, TLSSecret: "holdgate-client", Engines: "engines:8000"},
	"llm-d-example":          {For: LLMD, Gateway: "public", Route: "models", ExtProc: service, Insecure: true, Engines: "engines:8000", Example: true},
	"llm-d-before-picker":    {For: LLMD, Destination: Route, Gateway: "public", Route: "models", ExtProc: service, TLSSecret: "holdgate-client", Engines: "engines:8000", Example: true},
}

// withDefaults fills in what the command's flags have as defaults.
func withDefaults(c Config) Config {
	c.Namespace, c.MaxRequestBytes, c.HoldMax = "models", 10<<20, time.Hour
	return c
}

// documents decodes all documents of a text.
func documents(t *testing.T, text []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var one map[string]any
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, "%s", text)
		all = append(all, one)
	}
}

func TestManifestsAreTheGoldenOnes(t *testing.T) {
	t.Parallel()
	for name, c := range golden {
		file := filepath.Join("testdata", name+".yaml")
		text, err := Render(withDefaults(c))
		require.NoError(t, err, name)
		if *update {
			require.NoError(t, os.WriteFile(file, text, 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(text), "%s: run go test ./internal/manifest -update when the change is wanted", name)
		for _, object := range documents(t, text) {
			require.Equal(t, "models", object["metadata"].(map[string]any)["namespace"], name)
			require.NotEmpty(t, object["apiVersion"], name)
			require.NotEmpty(t, object["kind"], name)
		}
		for line := range strings.Lines(string(text)) {
			require.Equal(t, strings.TrimRight(line, " \n"), strings.TrimSuffix(line, "\n"), "%s: spaces at the end of a line", name)
		}
	}
}

// What an EnvoyFilter has for Envoy is known to Envoy, every field of it.
func TestThePatchesForIstioAreEnvoysOwnMessages(t *testing.T) {
	t.Parallel()
	kinds := map[string]func() proto.Message{
		"CLUSTER":        func() proto.Message { return &clusterv3.Cluster{} },
		"HTTP_FILTER":    func() proto.Message { return &hcmv3.HttpFilter{} },
		"NETWORK_FILTER": func() proto.Message { return &listenerv3.Filter{} },
		"LISTENER":       func() proto.Message { return &listenerv3.Listener{} },
		"VIRTUAL_HOST":   func() proto.Message { return &routev3.VirtualHost{} },
		"HTTP_ROUTE":     func() proto.Message { return &routev3.Route{} },
	}
	for name, c := range golden {
		text, err := Render(withDefaults(c))
		require.NoError(t, err, name)
		for _, object := range documents(t, text) {
			if object["kind"] != "EnvoyFilter" {
				continue
			}
			patches := object["spec"].(map[string]any)["configPatches"].([]any)
			require.Len(t, patches, len(kinds)+1, "two clusters")
			for _, p := range patches {
				patch := p.(map[string]any)
				value, err := json.Marshal(patch["patch"].(map[string]any)["value"])
				require.NoError(t, err)
				m := kinds[patch["applyTo"].(string)]()
				require.NoError(t, protojson.Unmarshal(value, m), "%s: %s", name, value)
				if cluster, ok := m.(*clusterv3.Cluster); ok {
					require.NoError(t, cluster.ValidateAll())
				}
			}
		}
	}
}

func TestABadValueIsRefusedAndNotPrinted(t *testing.T) {
	t.Parallel()
	good := withDefaults(golden["envoy-gateway-endpoint"])
	for want, change := range map[string]func(*Config){
		"For: must be one of envoy-gateway, istio, ai-gateway, llm-d": func(c *Config) { c.For = "nginx" },
		"Destination: must be route or endpoint, is \"replica\"":      func(c *Config) { c.Destination = "replica" },
		"Destination: must be route: with Istio":                      func(c *Config) { c.For = Istio },
		"Destination: must be route: Envoy AI Gateway":                func(c *Config) { c.For = AIGateway },
		"Namespace: is required":                                      func(c *Config) { c.Namespace = "" },
		"Namespace: must be a DNS label":                              func(c *Config) { c.Namespace = "a.b" },
		"Gateway: must be a DNS name":                                 func(c *Config) { c.Gateway = "a}\nkind: Secret" },
		"Gateway: is required":                                        func(c *Config) { c.Gateway = "" },
		"Route: must be a DNS name":                                   func(c *Config) { c.Route = "Models" },
		"Route: is a word or number of YAML":                          func(c *Config) { c.Route = "0x1f" },
		"TLSSecret: must be a DNS name":                               func(c *Config) { c.TLSSecret = "a b" },
		"TLSSecret: is a word or number of YAML":                      func(c *Config) { c.TLSSecret = "null" },
		"TLSSecret: is required":                                      func(c *Config) { c.TLSSecret = "" },
		"TLSSecret: is of no use with a unix socket":                  func(c *Config) { c.ExtProc = socket },
		"ExtProc: must be unix:///path or host:port":                  func(c *Config) { c.ExtProc = "holdgate" },
		"ExtProc: must have a port":                                   func(c *Config) { c.ExtProc = "holdgate:0" },
		"ExtProc: must be a DNS name":                                 func(c *Config) { c.ExtProc = "a_b:1" },
		"ExtProc: must be a name, is the IP address":                  func(c *Config) { c.ExtProc = "10.0.0.1:9001" },
		"ExtProc: must be an absolute path":                           func(c *Config) { c.ExtProc = "unix:///run/a b" },
		"ExtProc: must be an absolute path of at most 107":            func(c *Config) { c.ExtProc = "unix:///" + strings.Repeat("a", 107) },
		"Engines: must be NAME:PORT":                                  func(c *Config) { c.Engines = "engines" },
		"Engines: must be a DNS label":                                func(c *Config) { c.Engines = "a#b:1" },
		"Engines: must have a port":                                   func(c *Config) { c.Engines = "a:99999" },
		"Engines: is of no use here":                                  func(c *Config) { c.Example = false },
		"MaxRequestBytes: must be between":                            func(c *Config) { c.MaxRequestBytes = 0 },
		"HoldMax: must be above 0":                                    func(c *Config) { c.HoldMax = 25 * time.Hour },
	} {
		c := good
		change(&c)
		text, err := Render(c)
		require.ErrorContains(t, err, want)
		require.Empty(t, text)
		_, ok := errors.AsType[settings.Problems](err)
		require.True(t, ok)
	}
}

func TestAPoolsPickerIsAServiceBesideThePool(t *testing.T) {
	t.Parallel()
	good := withDefaults(golden["llm-d"])
	for _, at := range []string{"holdgate.other.svc.cluster.local:9001", "holdgate:9001", socket, "10.0.0.1:9001"} {
		c := good
		c.ExtProc = at
		_, err := Render(c)
		require.ErrorContains(t, err, "ExtProc: must be a", at)
	}
	c := good
	c.Gateway = "public"
	_, err := Render(c)
	require.ErrorContains(t, err, "Gateway: is of no use for llm-d with the destination endpoint")
	c = withDefaults(golden["ai-gateway"])
	c.Example, c.Engines = true, "engines:8000"
	_, err = Render(c)
	require.ErrorContains(t, err, "Example: there is none for ai-gateway")
}
