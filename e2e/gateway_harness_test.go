// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
)

// envoyGateway is what Envoy Gateway makes of a Gateway, an HTTPRoute and an
// EnvoyExtensionPolicy: no lanes, no composite cluster, no initial metadata. LISTEN, ENGINE
// and SOCKETS are replaced; LOG is the access log or nothing.
const envoyGateway = `
static_resources:
  listeners:
  - name: default/eg/http
    address: {socket_address: {address: LISTEN_HOST, port_value: LISTEN_PORT}}
    per_connection_buffer_limit_bytes: 32768
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http-10080
          use_remote_address: true
          normalize_path: true
          merge_slashes: true
          path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT
          server_header_transformation: PASS_THROUGH
          common_http_protocol_options: {headers_with_underscores_action: REJECT_REQUEST}
          http2_protocol_options: {initial_connection_window_size: 1048576, initial_stream_window_size: 65536, max_concurrent_streams: 100}
          LOG
          http_filters:
          - name: envoy.filters.http.ext_proc/envoyextensionpolicy/default/holdgate/extproc/0
            disabled: true
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              failure_mode_allow: true
              grpc_service: {envoy_grpc: {authority: holdgate.default:9001, cluster_name: envoyextensionpolicy/default/holdgate/extproc/0}, timeout: 10s}
              processing_mode:
                request_header_mode: SEND
                request_body_mode: FULL_DUPLEX_STREAMED
                request_trailer_mode: SEND
                response_header_mode: SKIP
                response_trailer_mode: SKIP
              metadata_options: {receiving_namespaces: {untyped: [holdgate]}}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, suppress_envoy_headers: true}
          route_config:
            name: default/eg/http
            virtual_hosts:
            - name: default/eg/http/llm_example_com
              domains: ["*"]
              routes:
              - name: httproute/default/models/rule/0/match/0/llm_example_com
                match: {path_separated_prefix: /v1}
                route: {cluster: httproute/default/models/rule/0, timeout: 0s}
                typed_per_filter_config:
                  envoy.filters.http.ext_proc/envoyextensionpolicy/default/holdgate/extproc/0:
                    "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig
                    config: {}
  clusters:
  - name: httproute/default/models/rule/0
    connect_timeout: 10s
    per_connection_buffer_limit_bytes: 32768
    load_assignment:
      cluster_name: httproute/default/models/rule/0
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: ENGINE_HOST, port_value: ENGINE_PORT}}}}]}]
  - name: envoyextensionpolicy/default/holdgate/extproc/0
    connect_timeout: 10s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {initial_connection_window_size: 1048576, initial_stream_window_size: 65536}}
    load_assignment:
      cluster_name: envoyextensionpolicy/default/holdgate/extproc/0
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: SOCKETS/extproc.sock}}}}]}]
`

// envoyGatewayLog is the access log of an EnvoyProxy with a sink of type ALS.
const envoyGatewayLog = `access_log:
          - name: envoy.access_loggers.http_grpc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
              common_config:
                log_name: edge
                transport_api_version: V3
                grpc_service: {envoy_grpc: {cluster_name: envoyextensionpolicy/default/holdgate/extproc/0}}
`

// oldEnvoy is the environment variable with the path of an Envoy before 1.37, which cannot stream
// an answer of ours. The tests TestOldEnvoy… run it.
const oldEnvoy = "HOLDGATE_OLD_ENVOY"

// runGateway runs an Envoy of somebody else.
func (s *site) runGateway(dir, text, listen, engine string) {
	s.t.Helper()
	host, port, err := net.SplitHostPort(listen)
	require.NoError(s.t, err)
	engineHost, enginePort, err := net.SplitHostPort(engine)
	require.NoError(s.t, err)
	text = strings.NewReplacer("LISTEN_HOST", host, "LISTEN_PORT", port, "ENGINE_HOST", engineHost, "ENGINE_PORT", enginePort, "SOCKETS", dir).Replace(text)
	bin := envoy.Binary{Path: os.Getenv(oldEnvoy)}
	if bin.Path == "" || !strings.HasPrefix(s.t.Name(), "TestOldEnvoy") {
		bin, err = envoy.Find(s.t.Context())
		require.NoError(s.t, err)
	}
	text += "\nadmin: {address: {pipe: {path: " + filepath.Join(dir, "admin.sock") + "}}}\n"
	s.envoy, err = bin.Start(context.Background(), envoy.Options{Bootstrap: []byte(text), Dir: dir, Concurrency: 1, Log: s.log})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, s.envoy.Stop(5*time.Second)) })
	s.url = "http://" + listen
}

// startBehindEnvoyGateway starts a site whose requests a gateway routes to an engine. log is
// the gateway's access log, and flags may name --relay; GATEWAY in them is the gateway's
// address.
func startBehindEnvoyGateway(t *testing.T, engine, log string, flags ...string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	listen := closedPort(t)
	all := []string{"--destination", "route"}
	for _, flag := range flags {
		all = append(all, strings.ReplaceAll(flag, "GATEWAY", listen))
	}
	s.startApp(dir, all)
	s.runGateway(dir, strings.Replace(envoyGateway, "LOG", log, 1), listen, engine)
	require.Equal(t, http.StatusOK, s.putMap(testMap).status)
	return s
}

// between is a proxy between the relay and the gateway that keeps each request.
type between struct {
	*httptest.Server
	mu     sync.Mutex
	heads  []http.Header
	bodies []string
	change func(body string) string // nil: none
}

func startBetween(t *testing.T, gateway func() string) *between {
	t.Helper()
	b := &between{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		b.heads, b.bodies = append(b.heads, r.Header.Clone()), append(b.bodies, string(text))
		if b.change != nil {
			text = []byte(b.change(string(text)))
		}
		b.mu.Unlock()
		out, err := http.NewRequestWithContext(r.Context(), r.Method, gateway()+r.RequestURI, bytes.NewReader(text))
		if err != nil {
			return
		}
		out.Header, out.Host = r.Header.Clone(), r.Host
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(b.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return b
}

// last returns the head and the body of the last request.
func (b *between) last(t *testing.T) (http.Header, string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.NotEmpty(t, b.heads)
	return b.heads[len(b.heads)-1], b.bodies[len(b.bodies)-1]
}
