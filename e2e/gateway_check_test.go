// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/envoy"
)

// checkRunning runs an Envoy and checks its config dump for a destination.
func checkRunning(t *testing.T, dir, bootstrap, destination string) *envoy.Report {
	t.Helper()
	bin, err := envoy.Find(t.Context())
	require.NoError(t, err)
	var log buffer
	p, err := bin.Start(context.Background(), envoy.Options{Bootstrap: []byte(bootstrap), Dir: dir, Concurrency: 1, Log: &log})
	require.NoError(t, err, log.String())
	defer func() { require.NoError(t, p.Stop(5*time.Second)) }()
	text, err := envoy.ReadDump(t.Context(), p.Admin())
	require.NoError(t, err)
	setup, err := envoy.ReadSetup(text)
	require.NoError(t, err)
	require.True(t, setup.Running())
	return envoy.Check(setup, envoy.CheckOptions{Budget: 5 * time.Minute, Destination: destination})
}

// plainEnvoy returns the bootstrap of the page about an Envoy of one's own.
func plainEnvoy(t *testing.T, dir string) string {
	t.Helper()
	text := block(t, "gateways/plain-envoy.md", "yaml", "static_resources:")
	return strings.NewReplacer("port_value: 8080", "port_value: 0", "/run/holdgate", dir).Replace(text) +
		"\nadmin: {address: {pipe: {path: " + filepath.Join(dir, "admin.sock") + "}}}\n"
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func lines(r *envoy.Report) string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, f.String())
	}
	return strings.Join(all, "\n")
}

// What an Envoy reports that runs the page's settings has no error, and each change of them
// is found in what that Envoy reports.
func TestTheCheckOfARunningEnvoy(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"as on the page": {},
		"idle":           {"stream_idle_timeout: 360s", "stream_idle_timeout: 60s", "error: listener clients: stream_idle_timeout: is 1m0s"},
		"mode":           {"request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: STREAMED", "error: listener clients: filter holdgate: processing_mode.request_body_mode: is STREAMED"},
		"timeout":        {"timeout: 0s\n                  retry", "retry", "error: listener clients: virtual host models: route 0: timeout: is missing, which means 15s"},
		"breaker":        {"{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}", "{max_connections: 100000}", "error: cluster holdgate: circuit_breakers.max_requests: is 1024"},
		"open":           {"common_lb_config:", "metadata: {}\n    # ", "warning: listener clients: filter holdgate: failure_mode_allow: is true, but cluster holdgate has no health check"},
		"Lua": {
			"          - name: envoy.filters.http.router", "          - {name: script, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: \"\"}}}\n          - name: envoy.filters.http.router",
			"note: listener clients: filter script: comes after holdgate's",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			text := plainEnvoy(t, dir)
			if c.from != "" {
				require.Equal(t, 1, strings.Count(text, c.from))
				text = strings.Replace(text, c.from, c.to, 1)
			}
			r := checkRunning(t, dir, text, "")
			require.Equal(t, "route", r.Destination)
			if strings.HasPrefix(c.want, "error: ") {
				require.Equal(t, 1, r.Count(envoy.Error), lines(r))
			} else {
				require.Zero(t, r.Count(envoy.Error), lines(r))
			}
			require.Contains(t, lines(r), c.want)
		})
	}
}

// The bootstrap that Holdgate renders has no finding, also as a running Envoy reports it.
func TestTheCheckOfARunningRenderedEnvoy(t *testing.T) {
	dir := shortDir(t)
	b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: dir})
	require.NoError(t, err)
	text, err := envoy.YAML(b)
	require.NoError(t, err)
	require.Equal(t, &envoy.Report{Destination: "replica"}, checkRunning(t, dir, string(text), ""))
}

// discovered splits a bootstrap into one without listeners and clusters, and files from which
// Envoy gets them, the routes and Holdgate's filter, as from a control plane.
func discovered(t *testing.T, dir, text string) string {
	t.Helper()
	var b map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &b))
	write := func(name, kind string, resources ...any) map[string]any {
		for _, r := range resources {
			r.(map[string]any)["@type"] = "type.googleapis.com/envoy.config." + kind
		}
		file, err := json.Marshal(map[string]any{"resources": resources})
		require.NoError(t, err)
		path := filepath.Join(dir, name+".json")
		require.NoError(t, os.WriteFile(path, file, 0o600))
		return map[string]any{"resource_api_version": "V3", "path_config_source": map[string]any{"path": path}}
	}
	static := b["static_resources"].(map[string]any)
	listener := static["listeners"].([]any)[0].(map[string]any)
	manager := listener["filter_chains"].([]any)[0].(map[string]any)["filters"].([]any)[0].(map[string]any)["typed_config"].(map[string]any)
	routes := manager["route_config"].(map[string]any)
	routes["name"] = "models"
	delete(manager, "route_config")
	manager["rds"] = map[string]any{"route_config_name": "models", "config_source": write("rds", "route.v3.RouteConfiguration", routes)}
	for _, f := range manager["http_filters"].([]any) {
		if f := f.(map[string]any); f["name"] == "holdgate" {
			config := f["typed_config"].(map[string]any)
			delete(f, "typed_config")
			f["config_discovery"] = map[string]any{
				"type_urls":     []any{config["@type"]},
				"config_source": write("ecds", "core.v3.TypedExtensionConfig", map[string]any{"name": "holdgate", "typed_config": config}),
			}
		}
	}
	b["node"] = map[string]any{"id": "a", "cluster": "b"}
	b["dynamic_resources"] = map[string]any{
		"lds_config": write("lds", "listener.v3.Listener", listener),
		"cds_config": write("cds", "cluster.v3.Cluster", static["clusters"].([]any)...),
	}
	delete(b, "static_resources")
	out, err := json.Marshal(b)
	require.NoError(t, err)
	return string(out)
}

func TestTheCheckOfARunningEnvoyWithAControlPlane(t *testing.T) {
	dir := shortDir(t)
	static := checkRunning(t, dir, plainEnvoy(t, dir), "")
	require.Equal(t, static, checkRunning(t, dir, discovered(t, dir, plainEnvoy(t, dir)), ""), "what came from elsewhere is read as what is in the bootstrap")
	broken := strings.NewReplacer("FULL_DUPLEX_STREAMED", "BUFFERED", "per_request_buffer_limit_bytes: 11534336", "per_request_buffer_limit_bytes: 5").Replace(plainEnvoy(t, dir))
	found := lines(checkRunning(t, dir, discovered(t, dir, broken), ""))
	require.Contains(t, found, "filter holdgate: processing_mode.request_body_mode: is BUFFERED")
	require.Contains(t, found, "per_request_buffer_limit_bytes: or what takes its place is 5")
}
