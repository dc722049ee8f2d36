// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/stretchr/testify/require"
)

func TestRenderedBootstrapsAreReadBackAndHaveNoFinding(t *testing.T) {
	t.Parallel()
	for name, c := range goldenConfigs {
		want, err := Render(c)
		require.NoError(t, err)
		text, err := YAML(want)
		require.NoError(t, err)
		got := parsed(t, text)
		requireSame(t, want, got, name)
		full := c.withDefaults()
		r := Check(SetupOf(got), CheckOptions{Budget: full.HoldMax, MaxRequestBytes: full.MaxRequestBytes, IdentityMetadata: c.IdentityMetadata})
		require.Equal(t, &Report{Destination: "replica"}, r, name)
	}
}

// parsed returns a bootstrap in which this program knows everything.
func parsed(t *testing.T, text []byte) *bootstrapv3.Bootstrap {
	t.Helper()
	tree, err := parseTree(text)
	require.NoError(t, err)
	b, notes, err := parseBootstrap(tree)
	require.NoError(t, err)
	require.Empty(t, notes)
	return b
}

// foreign returns a bootstrap that this program did not render: it has an unknown
// extension, two listeners, and everything that holding needs.
func foreign(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "foreign.yaml"))
	require.NoError(t, err)
	return string(text)
}

func findings(t *testing.T, text string, budget time.Duration) []string {
	t.Helper()
	return findingsOf(t, text, CheckOptions{Budget: budget, Destination: "replica"})
}

func findingsOf(t *testing.T, text string, o CheckOptions) []string {
	t.Helper()
	s, err := ReadSetup([]byte(text))
	require.NoError(t, err)
	var lines []string
	for _, f := range Check(s, o).Findings {
		lines = append(lines, f.String())
	}
	return lines
}

func TestAForeignBootstrapThatHoldsHasNoFinding(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"note: listener public: filter holdgate: is off on 2 of 3 routes"}, findings(t, foreign(t), 5*time.Minute))
}

func TestEverythingThatBreaksHoldingIsFound(t *testing.T) {
	t.Parallel()
	const filter = "listener public: filter holdgate: "
	const inference = "listener public: virtual host models: route inference: "
	for name, c := range map[string]struct {
		from, to string
		want     string
	}{
		"body mode":              {"request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: STREAMED", filter + "processing_mode.request_body_mode: is STREAMED, must be FULL_DUPLEX_STREAMED"},
		"headers skipped":        {"request_header_mode: SEND", "request_header_mode: SKIP", filter + "processing_mode.request_header_mode: is SKIP, must be SEND"},
		"trailers":               {"request_trailer_mode: SEND", "request_trailer_mode: SKIP", filter + "processing_mode.request_trailer_mode: is SKIP, must be SEND"},
		"response headers":       {"response_header_mode: SKIP", "response_header_mode: SEND", filter + "processing_mode.response_header_mode: is SEND, must be SKIP"},
		"by default":             {"response_header_mode: SKIP", "response_header_mode: DEFAULT", filter + "processing_mode.response_header_mode: is DEFAULT, must be SKIP"},
		"response body":          {"response_header_mode: SKIP", "response_header_mode: SKIP, response_body_mode: STREAMED", filter + "processing_mode.response_body_mode: is STREAMED, must be NONE"},
		"response trailers":      {"response_header_mode: SKIP", "response_header_mode: SKIP, response_trailer_mode: SEND", filter + "processing_mode.response_trailer_mode: is SEND, must be SKIP"},
		"namespace":              {"untyped: [holdgate]", "untyped: [other]", filter + "metadata_options.receiving_namespaces.untyped: lacks holdgate"},
		"no immediate":           {"message_timeout: 5s", "disable_immediate_response: true", filter + "disable_immediate_response: is true"},
		"observability":          {"message_timeout: 5s", "observability_mode: true", filter + "observability_mode: is true"},
		"google grpc":            {"envoy_grpc: {cluster_name: holdgate}", "google_grpc: {target_uri: h, stat_prefix: h}", filter + "grpc_service: is not an envoy_grpc service"},
		"dynamic cluster":        {"envoy_grpc: {cluster_name: holdgate}", "envoy_grpc: {cluster_name: elsewhere}", filter + "grpc_service: cluster elsewhere is not a static one"},
		"no max_requests":        {"max_requests: 100000", "max_connections: 100000", "cluster holdgate: circuit_breakers.max_requests: is 1024, must be larger"},
		"max_requests":           {"max_requests: 100000", "max_requests: 1000", "cluster holdgate: circuit_breakers.max_requests: is 1000, must be larger: each held request is one open stream, and request 1001 fails"},
		"of high priority":       {"max_requests: 100000", "priority: HIGH, max_requests: 100000", "cluster holdgate: circuit_breakers.max_requests: is 1024"},
		"no access log":          {"log_name: edge", "log_name: other", "listener public: access_log: has no http_grpc log named edge"},
		"a log that waits":       {"buffer_flush_interval: 0.005s", "buffer_flush_interval: 1s", "listener public: access_log: named edge has a buffer_flush_interval above 20ms"},
		"a shared log":           {"cluster_name: holdgate_log", "cluster_name: holdgate", "listener public: access_log: named edge uses the cluster holdgate of ext_proc"},
		"idle":                   {"stream_idle_timeout: 3660s", "stream_idle_timeout: 300s", "listener public: stream_idle_timeout: is 5m0s, must be 0s or above the hold budget of 5m0s"},
		"idle by default":        {"stream_idle_timeout: 3660s", "generate_request_id: true", "listener public: stream_idle_timeout: is 5m0s"},
		"max duration":           {"stream_idle_timeout: 3660s", "stream_idle_timeout: 3660s\n          common_http_protocol_options: {max_stream_duration: 600s}", "listener public: common_http_protocol_options.max_stream_duration: is 10m0s, should be 0s"},
		"route timeout":          {"timeout: 0s", "timeout: 15s", "listener public: virtual host models: route inference: timeout: is 15s, must be 0s"},
		"no route timeout":       {"timeout: 0s", "priority: DEFAULT", "listener public: virtual host models: route inference: timeout: is missing, which means 15s"},
		"route idle":             {"timeout: 0s", "timeout: 0s\n                  idle_timeout: 10s", "route inference: idle_timeout: is 10s"},
		"route duration":         {"timeout: 0s", "timeout: 0s\n                  max_stream_duration: {max_stream_duration: 1s}", "route inference: max_stream_duration: is 1s"},
		"routes elsewhere":       {"route_config:\n", "rds: {config_source: {ads: {}}, route_config_name: x}\n          x_unused:\n", "listener public: route_config: is not there"},
		"no retries":             {"retry_policy: {retry_on: ", "hash_policy: [{terminal: true, header: {header_name: x}}]\n                  x_unused: {retry_on: ", inference + "retry_policy: is missing, must have retry_on connect-failure"},
		"per-try timeout":        {`reset", num_retries: 1}` + "\n              - name: health", `reset", num_retries: 1, per_try_timeout: 9s}` + "\n              - name: health", inference + "retry_policy.per_try_timeout: is 9s, must be 0s: it ends answers"},
		"per-try idle":           {`reset", num_retries: 1}` + "\n              - name: health", `reset", num_retries: 1, per_try_idle_timeout: 9s}` + "\n              - name: health", inference + "retry_policy.per_try_idle_timeout: is 9s, must be 0s: it cuts"},
		"engines' errors":        {`retry_policy: {retry_on: "connect-failure,`, `retry_policy: {retry_on: "5xx,connect-failure,`, inference + "retry_policy.retry_on: has 5xx, must be connect-failure,refused-stream,reset-before-request,reset: an engine's own error is taken for a failed try, and the request runs twice"},
		"all errors of a header": {`retry_policy: {retry_on: "connect-failure,`, `retry_policy: {retriable_headers: [{name: x-retry, present_match: true}], retry_on: "retriable-headers,connect-failure,`, inference + "retry_policy.retry_on: has retriable-headers"},
		"gateway errors":         {`retry_policy: {retry_on: "connect-failure,`, `retry_policy: {retry_on: "connect-failure, gateway-error,`, inference + "retry_policy.retry_on: has gateway-error"},
		"no reset":               {`retry_policy: {retry_on: "connect-failure,refused-stream,reset-before-request,reset"`, `retry_policy: {retry_on: "connect-failure"`, inference + "retry_policy.retry_on: lacks reset: a request whose engine dies before its answer ends with 503"},
		"no connect":             {`retry_policy: {retry_on: "connect-failure,`, `retry_policy: {retry_on: "`, inference + "retry_policy.retry_on: lacks connect-failure: a request whose engine refuses the connection"},
		"another cluster":        {"cluster: destinations\n                  timeout", "cluster: models\n                  timeout", inference + "cluster: models does not read the destination from the metadata holdgate, key first"},
		"cluster unknown":        {"cluster: destinations\n                  timeout", "cluster: far\n                  timeout", inference + "cluster: far is not a static one"},
		"cluster by header":      {"cluster: destinations\n                  timeout", "cluster_header: x\n                  timeout", inference + "cluster: is not one cluster by its name"},
		"another key":            {"path: [{key: first}]", "path: [{key: second}]", inference + "cluster: destinations does not read the destination"},
		"no rehold lane":         {"value: rehold", "value: edge", "listeners: lack the rehold lane"},
		"no relay lane":          {"header: x-holdgate-destination", "header: x-other", "listeners: lack the relay lane"},
		"unknown field":          {"stream_idle_timeout: 3660s", "stream_idle_timeout: 3660s\n          from_the_future: 1", "bootstrap: has a field that this program does not know"},
	} {
		text := foreign(t)
		require.Equal(t, 1, strings.Count(text, c.from), "%s: %q", name, c.from)
		found := strings.Join(findings(t, strings.Replace(text, c.from, c.to, 1), 5*time.Minute), "\n")
		require.Contains(t, found, c.want, name)
	}
}

func TestAnExtProcFilterWithoutAModeIsFoundLacking(t *testing.T) {
	t.Parallel()
	c := &checker{seen: map[Finding]bool{}}
	c.requestModes("filter: processing_mode.", nil)
	c.responseModes("filter: processing_mode.", nil)
	require.Len(t, c.found, 3)
	require.Equal(t, "error: filter: processing_mode.request_body_mode: is NONE, must be FULL_DUPLEX_STREAMED: any other mode cuts a hold after message_timeout", c.found[0].String())
}

func TestABootstrapWithoutExtProcIsFoundLacking(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"error: listeners: have no ext_proc filter: nothing would be held"}, findings(t, "node: {id: a}\n", time.Minute))
}

func TestRoutesOnWhichTheFilterIsOffMayHaveTimeouts(t *testing.T) {
	t.Parallel()
	// The foreign bootstrap has such a route; with the filter enabled there, the route
	// is reported.
	text := foreign(t)
	const off = "disabled: true"
	require.Equal(t, 2, strings.Count(text, off))
	found := findings(t, strings.ReplaceAll(text, off, "disabled: false"), time.Minute)
	for _, route := range []string{"health", "2"} {
		require.Contains(t, found, "error: listener public: virtual host models: route "+route+": timeout: is missing, which means 15s, must be 0s: it cuts answers that take longer")
	}
}

func TestOneClusterIsReportedOnce(t *testing.T) {
	t.Parallel()
	b, err := Render(goldenConfigs["unix"])
	require.NoError(t, err)
	b.GetStaticResources().GetClusters()[0].CircuitBreakers = nil
	require.Len(t, Check(SetupOf(b), CheckOptions{Budget: time.Minute}).Findings, 1, "edge and rehold use the same")
}

func TestWhatIsNoBootstrapIsAnError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      "reading the bootstrap: it is empty",
		"a: b: c":                               "reading the bootstrap: yaml:",
		"[1, 2]":                                "reading the bootstrap:",
		"just text":                             "reading the bootstrap:",
		"node: {}\n---\na: 1":                   "more than one YAML document",
		"apiVersion: v1\nkind: List\n---\na: 1": "it is a Kubernetes manifest: check the running gateway",
		"node: {}\nnode: {}":                    "already defined",
		"static_resources: 7":                   "reading the bootstrap:",
		"admin: {address: 1}":                   "reading the bootstrap:",
		"node: {id: [\"a\"]}":                   "reading the bootstrap:",
		"{\"node\": {\"id\": 1":                 "reading the bootstrap:",
	} {
		_, err := ReadSetup([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzParseAndCheck(f *testing.F) {
	f.Add([]byte("node: {id: a}\n"))
	f.Add([]byte("static_resources: {listeners: [{name: a, filter_chains: [{filters: [{name: b, typed_config: {\"@type\": \"type.googleapis.com/x.Y\", a: [1.5, null]}}]}]}]}"))
	f.Add([]byte("a: &a [1]\nb: *a\n? [1]\n: 2\n"))
	f.Add([]byte(`{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump"}, {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "dynamic_listeners": [{"name": "\u001b", "error_state": {}}]}]}`))
	for _, name := range []string{"foreign.yaml", "dump.yaml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ReadSetup(text)
		if err != nil {
			require.Regexp(t, "^reading the (bootstrap|config dump): ", err.Error())
			require.Equal(t, printable(err.Error()), err.Error())
			return
		}
		for _, destination := range []string{"", "replica", "route", "endpoint"} {
			for _, f := range Check(s, CheckOptions{Budget: time.Minute, Destination: destination}).Findings {
				require.NotEmpty(t, f.Path)
				require.NotEmpty(t, f.Text)
				require.Equal(t, printable(f.String()), f.String())
			}
		}
	})
}
