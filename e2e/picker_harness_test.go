// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/base64"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// pickerFilter is the filter as gateways set it for an endpoint picker; RESPONSE are its modes
// for the answer. The filters before it put the hint into metadata that a header gives: x-hint as
// one string, x-hints as an encoded Value.
const pickerFilter = `
          - name: envoy.filters.http.header_to_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules:
              - header: x-hint
                on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset, type: STRING}
                remove: true
              - header: x-hints
                on_header_present: {metadata_namespace: envoy.lb.subset_hint, key: x-gateway-destination-endpoint-subset, type: PROTOBUF_VALUE, encode: BASE64}
                remove: true
          - name: picker
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: picker}, timeout: 10s}
              message_timeout: 1000s
              processing_mode:
                request_header_mode: SEND
                request_body_mode: FULL_DUPLEX_STREAMED
                request_trailer_mode: SEND
                RESPONSE
              metadata_options:
                forwarding_namespaces: {untyped: [envoy.lb.subset_hint]}
                receiving_namespaces: {untyped: [holdgate, envoy.lb]}`

// pickerShape is how a gateway asks an endpoint picker, and follows it.
type pickerShape struct {
	response string
	cluster  string // the settings of the cluster for the engines
	fallback bool   // it uses the addresses after the first
}

const originalDst = `type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    `

// pickerShapes are those of the gateways: Envoy Gateway and Istio choose among the endpoints that
// they know, llm-d's and Envoy AI Gateway's follow the header or the metadata.
var pickerShapes = map[string]pickerShape{
	"override_host": {
		response: "response_header_mode: SKIP\n                response_trailer_mode: SKIP",
		cluster: `load_assignment:
      cluster_name: engines
      endpoints: [{lb_endpoints: [ENGINES]}]
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{header: x-gateway-destination-endpoint}]
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.round_robin
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}`,
		fallback: true,
	},
	"original_dst by header": {
		response: "response_header_mode: SEND\n                response_body_mode: FULL_DUPLEX_STREAMED\n                response_trailer_mode: SEND",
		cluster:  originalDst + "original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}",
	},
	"original_dst by metadata": {
		response: "response_header_mode: SEND\n                response_body_mode: FULL_DUPLEX_STREAMED\n                response_trailer_mode: SEND",
		cluster:  originalDst + "original_dst_lb_config: {metadata_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}}",
	},
}

const pickerGateway = `
static_resources:
  listeners:
  - name: gateway
    address: {socket_address: {address: LISTEN_HOST, port_value: LISTEN_PORT}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: gateway
          use_remote_address: true
          access_log:
          - name: envoy.access_loggers.http_grpc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
              common_config:
                log_name: edge
                transport_api_version: V3
                grpc_service: {envoy_grpc: {cluster_name: picker}}
                buffer_size_bytes: 1048576
                buffer_flush_interval: 0.005s
          http_filters:FILTER
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: models
              domains: ["*"]
              per_request_buffer_limit_bytes: 11534336
              routes:
              - match: {prefix: /}
                route:
                  cluster: engines
                  timeout: 0s
                  retry_policy: {retry_on: "connect-failure,refused-stream,reset-before-request", num_retries: 2}
  clusters:
  - name: engines
    connect_timeout: 1s
    CLUSTER
  - name: picker
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {initial_stream_window_size: 262144}}
    load_assignment:
      cluster_name: picker
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: SOCKETS/extproc.sock}}}}]}]
`

// gatewayText returns the bootstrap of a gateway of a shape before engines.
func (p pickerShape) gatewayText(t *testing.T, engines ...string) string {
	t.Helper()
	var list []string
	for _, e := range engines {
		host, port, err := net.SplitHostPort(e)
		require.NoError(t, err)
		list = append(list, fmt.Sprintf("{endpoint: {address: {socket_address: {address: %q, port_value: %s}}}}", host, port))
	}
	return strings.NewReplacer(
		"FILTER", strings.Replace(pickerFilter, "RESPONSE", p.response, 1),
		"CLUSTER", strings.Replace(p.cluster, "ENGINES", strings.Join(list, ", "), 1),
	).Replace(pickerGateway)
}

// startAsPicker starts a site that is the endpoint picker of a gateway; GATEWAY in flags is the
// gateway's address.
func startAsPicker(t *testing.T, p pickerShape, engines []string, flags ...string) *site {
	t.Helper()
	return startInGateway(t, "endpoint", engines[0], func(string, string) string { return p.gatewayText(t, engines...) }, flags)
}

// hintsHeader is the value of x-hints for a list of addresses.
func hintsHeader(t *testing.T, addresses ...any) string {
	t.Helper()
	list, err := structpb.NewList(addresses)
	require.NoError(t, err)
	data, err := proto.Marshal(structpb.NewListValue(list))
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(data)
}
