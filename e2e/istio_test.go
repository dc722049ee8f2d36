// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/internal/pickertest"
)

// istioGateway has a listener, a route and a cluster in the form that Istio gives a gateway.
const istioGateway = `
static_resources:
  listeners:
  - name: 0.0.0.0_80
    address: {socket_address: {address: LISTEN_HOST, port_value: LISTEN_PORT}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: outbound_0.0.0.0_80
          use_remote_address: true
          normalize_path: true
          path_with_escaped_slashes_action: KEEP_UNCHANGED
          forward_client_cert_details: SANITIZE_SET
          stream_idle_timeout: 0s
          upgrade_configs: [{upgrade_type: websocket}]
          access_log:
          - name: envoy.access_loggers.file
            typed_config: {"@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: /dev/stdout}
          http_filters:
          - name: envoy.filters.http.grpc_stats
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.grpc_stats.v3.FilterConfig, emit_filter_state: true}
          - name: envoy.filters.http.fault
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault}
          - name: envoy.filters.http.cors
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            name: http.80
            virtual_hosts:
            - name: "*:80"
              domains: ["*"]
              include_request_attempt_count: true
              routes:
              - name: models.models.0
                match: {prefix: /}
                route:
                  cluster: outbound|8000||engines.models.svc.cluster.local
                  timeout: 0s
                  max_grpc_timeout: 0s
                  retry_policy:
                    retry_on: connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes
                    num_retries: 2
                    retriable_status_codes: [503]
                    host_selection_retry_max_attempts: 5
                    retry_host_predicate:
                    - name: envoy.retry_host_predicates.previous_hosts
                      typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}
  clusters:
  - name: outbound|8000||engines.models.svc.cluster.local
    type: STATIC
    connect_timeout: 10s
    lb_policy: LEAST_REQUEST
    circuit_breakers: {thresholds: [{max_connections: 4294967295, max_pending_requests: 4294967295, max_requests: 4294967295, max_retries: 4294967295, track_remaining: true}]}
    load_assignment:
      cluster_name: outbound|8000||engines.models.svc.cluster.local
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: ENGINE_HOST, port_value: ENGINE_PORT}}}}]}]
`

const istioPickerCluster = `
name: picker
connect_timeout: 10s
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config: {http2_protocol_options: {}}
load_assignment:
  cluster_name: picker
  endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: /run/picker.sock}}}}]}]
`

// gatewayOfIstio returns a gateway of Istio. With a pool it has the filter, the route and the
// clusters of an InferencePool.
func gatewayOfIstio(t *testing.T, pool bool) tree {
	t.Helper()
	here := strings.NewReplacer("LISTEN_HOST", "0.0.0.0", "LISTEN_PORT", "80", "ENGINE_HOST", "10.1.0.1", "ENGINE_PORT", "8000", "DEAD_HOST", "10.1.0.2", "DEAD_PORT", "8000")
	var gateway tree
	require.NoError(t, yaml.Unmarshal([]byte(here.Replace(istioGateway)), &gateway))
	if !pool {
		return gateway
	}
	text, err := os.ReadFile("testdata/chains/istio.yaml")
	require.NoError(t, err)
	var part struct {
		Filter, Route any
		Clusters      []any
	}
	require.NoError(t, yaml.Unmarshal([]byte(here.Replace(string(text))), &part))
	resources := gateway["static_resources"].(tree)
	visit(resources["listeners"], func(m tree) {
		if filters, ok := m["http_filters"].([]any); ok {
			m["http_filters"] = slices.Insert(filters, 0, part.Filter)
		}
		if _, ok := m["routes"]; ok {
			m["routes"] = []any{part.Route}
		}
	})
	var picker tree
	require.NoError(t, yaml.Unmarshal([]byte(istioPickerCluster), &picker))
	resources["clusters"] = append(part.Clusters, picker)
	return gateway
}

// patched applies the EnvoyFilter of some manifests to a gateway of Istio, as istiod would.
func patched(t *testing.T, gateway tree, manifests string) tree {
	t.Helper()
	var object tree
	require.NoError(t, yaml.Unmarshal([]byte(manifests), &object))
	require.Equal(t, "EnvoyFilter", object["kind"])
	for _, p := range object["spec"].(tree)["configPatches"].([]any) {
		applyPatch(t, gateway, p.(tree))
	}
	return gateway
}

func applyPatch(t *testing.T, bootstrap, patch tree) {
	t.Helper()
	resources := bootstrap["static_resources"].(tree)
	value := patch["patch"].(tree)["value"].(tree)
	match := patch["match"].(tree)
	require.Equal(t, "GATEWAY", match["context"])
	applied := 0
	// mergeInto merges the value into the messages that have a key.
	mergeInto := func(key string) {
		visit(resources["listeners"], func(m tree) {
			if _, ok := m[key]; ok {
				merge(m, value)
				applied++
			}
		})
	}
	what := patch["applyTo"].(string) + " " + patch["patch"].(tree)["operation"].(string)
	switch what {
	case "CLUSTER ADD":
		resources["clusters"] = append(resources["clusters"].([]any), value)
		applied++
	case "HTTP_FILTER INSERT_BEFORE":
		before := match["listener"].(tree)["filterChain"].(tree)["filter"].(tree)["subFilter"].(tree)["name"]
		visit(resources["listeners"], func(m tree) {
			filters, _ := m["http_filters"].([]any)
			if at := slices.IndexFunc(filters, func(f any) bool { return f.(tree)["name"] == before }); at >= 0 {
				m["http_filters"] = slices.Insert(filters, at, any(value))
				applied++
			}
		})
	case "NETWORK_FILTER MERGE":
		value = value["typed_config"].(tree)
		mergeInto("http_filters")
	case "LISTENER MERGE":
		mergeInto("filter_chains")
	case "VIRTUAL_HOST MERGE":
		mergeInto("domains")
	case "HTTP_ROUTE MERGE":
		mergeInto("route")
	}
	require.Equal(t, 1, applied, what)
}

// merge puts src into dst as messages are merged: lists grow, other fields are replaced.
func merge(dst, src tree) {
	for key, v := range src {
		switch v := v.(type) {
		case tree:
			if inner, ok := dst[key].(tree); ok {
				merge(inner, v)
				continue
			}
		case []any:
			if list, ok := dst[key].([]any); ok {
				dst[key] = slices.Concat(list, v)
				continue
			}
		}
		dst[key] = v
	}
}

// readdressIstio replaces the addresses of a patched gateway.
func readdressIstio(t *testing.T, bootstrap tree, listen, engine, extProc string) {
	t.Helper()
	visit(bootstrap, func(m tree) {
		if port, ok := m["port_value"]; ok {
			m["portValue"] = port
			delete(m, "port_value")
		}
	})
	readdress(t, bootstrap, map[string]string{"0.0.0.0:80": listen, "10.1.0.1:8000": engine, routerName + ":9001": extProc})
	visit(bootstrap, func(m tree) {
		if port, ok := m["portValue"]; ok {
			m["port_value"] = port
			delete(m, "portValue")
		}
	})
}

func TestIstioWithHoldgateAsAService(t *testing.T) {
	const page = "istio.md"
	b, secrets := secured(t, page, "holdgate serve --destination route", "")
	bootstrap := patched(t, gatewayOfIstio(t, false), renderedBy(t, page, 1))
	readdressIstio(t, bootstrap, b.listen, b.engine, b.extProc)
	putSecrets(t, bootstrap, secrets)
	text := bootstrapText(t, bootstrap)
	requireChecked(t, b.dir, "route", text)
	b.runGateway(b.dir, text, b.listen, b.engine)
	b.followed(true)
}

// Holdgate's filter stands right before the picker's. The picker has no endpoint until the
// engine is up.
func TestLLMDWithHoldgateBeforeThePicker(t *testing.T) {
	const page = "llm-d.md"
	requireRendered(t, page, 1, "llm-d")
	b, secrets := secured(t, page, "holdgate serve --destination route", "")
	picker := &pickertest.Picker{}
	servePicker(t, picker, filepath.Join(b.dir, "picker.sock"))
	b.awake = func() { picker.Name(b.engine) }
	bootstrap := patched(t, gatewayOfIstio(t, true), renderedBy(t, page, 2))
	var names []string
	visit(bootstrap, func(m tree) {
		filters, _ := m["http_filters"].([]any)
		for _, f := range filters {
			names = append(names, f.(tree)["name"].(string))
		}
	})
	require.Equal(t, []string{"holdgate", "envoy.filters.http.ext_proc", "envoy.filters.http.grpc_stats"}, names[:3])
	readdressIstio(t, bootstrap, b.listen, b.engine, b.extProc)
	readdress(t, bootstrap, map[string]string{"/run/picker.sock": filepath.Join(b.dir, "picker.sock")})
	putSecrets(t, bootstrap, secrets)
	b.runGateway(b.dir, bootstrapText(t, bootstrap), b.listen, b.engine)
	b.followed(true)
	require.Positive(t, picker.Counts().Answers)
}
