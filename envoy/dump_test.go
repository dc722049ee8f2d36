// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// foreignDump returns the config dump of a gateway with all that holding needs.
func foreignDump(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "dump.yaml"))
	require.NoError(t, err)
	return string(text)
}

func TestAGatewayThatHoldsHasNoFinding(t *testing.T) {
	t.Parallel()
	s, err := ReadSetup([]byte(foreignDump(t)))
	require.NoError(t, err)
	require.True(t, s.Running())
	require.Equal(t, &Report{Destination: "route"}, Check(s, CheckOptions{Budget: 5 * time.Minute}))
}

func TestWhatBreaksHoldingInAGatewayIsFound(t *testing.T) {
	t.Parallel()
	const (
		filter  = "listener http: filter hold: "
		route   = "listener http: virtual host llm.example.com: route chat: "
		jwt     = "- name: jwt\n"
		another = `- {name: picker, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor, grpc_service: {envoy_grpc: {cluster_name: epp}}, processing_mode: {request_body_mode: BUFFERED}}}` + "\n              "
		at      = "timeout: 0s\n"
		router  = "- name: router\n"
	)
	filterOf := func(message string) string {
		return `- {name: x, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.` + message + "}}\n              "
	}
	perRoute := func(settings string) string {
		return "            timeout: 0s\n          typed_per_filter_config: {hold: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, " + settings + "}}\n          z_unused:\n            a: 1\n"
	}
	for name, c := range map[string]struct{ from, to, want string }{
		"version":              {"minor_number: 40", "minor_number: 36", "warning: version: is 1.36, must be 1.37 or newer: an older Envoy refuses keepalives: the first held"},
		"body mode":            {"request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: BUFFERED", "error: " + filter + "processing_mode.request_body_mode: is BUFFERED"},
		"trailers":             {"request_trailer_mode: SEND, ", "", "error: " + filter + "processing_mode.request_trailer_mode: is DEFAULT, must be SEND"},
		"response headers":     {"response_header_mode: SKIP", "response_header_mode: SEND", "warning: " + filter + "processing_mode.response_header_mode: is SEND, must be SKIP"},
		"response body":        {"response_header_mode: SKIP", "response_header_mode: SKIP, response_body_mode: STREAMED", "warning: " + filter + "processing_mode.response_body_mode: is STREAMED"},
		"response trailers":    {"response_trailer_mode: SKIP", "response_trailer_mode: SEND", "warning: " + filter + "processing_mode.response_trailer_mode: is SEND"},
		"mode override":        {"message_timeout: 5s", "allow_mode_override: true", "note: " + filter + "allow_mode_override: is true"},
		"immediate":            {"message_timeout: 5s", "disable_immediate_response: true", "error: " + filter + "disable_immediate_response: is true"},
		"observability":        {"message_timeout: 5s", "observability_mode: true", "error: " + filter + "observability_mode: is true"},
		"forward rules":        {"message_timeout: 5s", "forward_rules: {allowed_headers: {patterns: [{exact: a}]}}", "warning: " + filter + "forward_rules: is set"},
		"mutations":            {"message_timeout: 5s", "mutation_rules: {disallow_all: true}", "warning: " + filter + "mutation_rules.disallow_all: is true"},
		"namespace":            {"untyped: [holdgate]", "untyped: [other]", "warning: " + filter + "metadata_options.receiving_namespaces.untyped: lacks holdgate"},
		"closed":               {"failure_mode_allow: true", "failure_mode_allow: false", "note: " + filter + "failure_mode_allow: is false"},
		"no health check":      {"health_checks:", "z_unused:", "warning: " + filter + "failure_mode_allow: is true, but cluster holdgate-server has no health check"},
		"panics":               {"healthy_panic_threshold: {value: 0}", "healthy_panic_threshold: {value: 50}", "warning: " + filter + "failure_mode_allow: is true, but cluster holdgate-server"},
		"HTTP service":         {"grpc_service: {envoy_grpc: {cluster_name: holdgate-server}}", "http_service: {http_service: {http_uri: {uri: h}}}", "error: " + filter + "grpc_service: is missing: holdgate is called by gRPC"},
		"no cluster":           {"name: holdgate-server\n      type: EDS", "name: other\n      type: EDS", "error: " + filter + "grpc_service: names the cluster holdgate-server, which is not there"},
		"requests at once":     {"max_requests: 100000", "max_requests: 1024", "error: cluster holdgate-server: circuit_breakers.max_requests: is 1024"},
		"HTTP/1":               {"http2_protocol_options: {}", "http_protocol_options: {}", "error: cluster holdgate-server: typed_extension_protocol_options: does not say that the cluster has HTTP/2"},
		"ejected":              {"      health_checks:", "      outlier_detection: {}\n      health_checks:", "warning: cluster holdgate-server: outlier_detection: is set"},
		"streams end":          {"explicit_http_config:", "common_http_protocol_options: {max_stream_duration: 60s}\n          explicit_http_config:", "error: cluster holdgate-server: common_http_protocol_options.max_stream_duration: is 1m0s, must be 0s: it cuts holds"},
		"no endpoints":         {"endpoints: [{lb_endpoints: [{health_status: HEALTHY}]}]", "endpoints: []", "warning: cluster holdgate-server: endpoints: there are none now"},
		"few engine requests":  {"max_requests: 5000", "max_requests: 100", "warning: cluster llm: circuit_breakers: allow 100 requests at once"},
		"engine's default":     {"max_connections: 5000, ", "", "note: cluster llm: circuit_breakers: allow 1024 requests at once"},
		"engine's retries":     {", max_retries: 5000", "", "note: cluster llm: circuit_breakers.max_retries: is 3"},
		"no log":               {"log_name: edge", "log_name: other", "warning: listener http: access_log: has no http_grpc log named edge that goes to holdgate: holdgate does not limit"},
		"a slow log":           {"buffer_flush_interval: 0.005s, ", "", "warning: listener http: access_log: named edge has a buffer_flush_interval above 20ms"},
		"a shared log":         {"cluster_name: logs", "cluster_name: holdgate-server", "note: listener http: access_log: named edge uses the cluster holdgate-server"},
		"a log with a filter":  {"- name: holdgate\n", "- name: holdgate\n                filter: {not_health_check_filter: {}}\n", "note: listener http: access_log: named edge has a filter"},
		"idle":                 {"stream_idle_timeout: 360s", "stream_idle_timeout: 60s", "error: listener http: stream_idle_timeout: is 1m0s"},
		"idle by default":      {"stream_idle_timeout: 360s", "z_unused: 1", "error: listener http: stream_idle_timeout: is 5m0s"},
		"all requests":         {"stream_idle_timeout: 360s", "stream_idle_timeout: 360s\n              common_http_protocol_options: {max_stream_duration: 60s}", "error: listener http: common_http_protocol_options.max_stream_duration: is 1m0s, must be 0s"},
		"all long requests":    {"stream_idle_timeout: 360s", "stream_idle_timeout: 360s\n              common_http_protocol_options: {max_stream_duration: 3600s}", "warning: listener http: common_http_protocol_options.max_stream_duration: is 1h0m0s, should be 0s"},
		"uploads":              {"stream_idle_timeout: 360s", "stream_idle_timeout: 360s\n              request_timeout: 5s", "note: listener http: request_timeout: is 5s"},
		"request ids":          {"stream_idle_timeout: 360s", "stream_idle_timeout: 360s\n              always_set_request_id_in_response: true", "note: listener http: always_set_request_id_in_response: is true"},
		"local replies":        {"stream_idle_timeout: 360s", "stream_idle_timeout: 360s\n              local_reply_config: {mappers: [{filter: {status_code_filter: {comparison: {op: GE, value: {default_value: 400}}}}, status_code: 500}]}", "warning: listener http: local_reply_config: is set, and changes the errors that holdgate answers with"},
		"route timeout":        {at, "timeout: 15s\n", "error: " + route + "timeout: is 15s, must be 0s: it cuts answers"},
		"long route timeout":   {at, "timeout: 1800s\n", "warning: " + route + "timeout: is 30m0s, should be 0s"},
		"no route timeout":     {"            timeout: 0s\n", "", "error: " + route + "timeout: is missing, which means 15s"},
		"route idle":           {at, at + "            idle_timeout: 10s\n", "error: " + route + "idle_timeout: is 10s"},
		"route duration":       {at, at + "            max_stream_duration: {max_stream_duration: 10s}\n", "error: " + route + "max_stream_duration: is 10s, must be 0s"},
		"no retries":           {"retry_policy:", "z_unused:", "warning: " + route + "retry_policy: is missing, must have retry_on connect-failure,refused-stream,reset-before-request:"},
		"5xx":                  {`"connect-failure,`, `"5xx,connect-failure,`, "warning: " + route + "retry_policy.retry_on: has 5xx"},
		"503":                  {`"connect-failure,`, `"retriable-status-codes,connect-failure,`, "warning: " + route + "retry_policy.retry_on: has retriable-status-codes"},
		"no connect":           {`"connect-failure,`, `"`, "warning: " + route + "retry_policy.retry_on: lacks connect-failure"},
		"per try":              {`reset-before-request"`, `reset-before-request", per_try_timeout: 5s`, "error: " + route + "retry_policy.per_try_timeout: is 5s, must be 0s"},
		"per try idle":         {`reset-before-request"`, `reset-before-request", per_try_idle_timeout: 5s`, "error: " + route + "retry_policy.per_try_idle_timeout: is 5s, must be 0s"},
		"buffer":               {"per_request_buffer_limit_bytes: 11534336", "per_request_buffer_limit_bytes: 32768", "warning: " + route + "per_request_buffer_limit_bytes: or what takes its place is 32768, should be above the largest body of 10485760"},
		"default buffer":       {"per_request_buffer_limit_bytes: 11534336", "z_unused: 1", "warning: " + route + "per_request_buffer_limit_bytes: or what takes its place is 1048576"},
		"connection buffer":    {"per_request_buffer_limit_bytes: 11534336", "request_body_buffer_limit: 5", "warning: " + route + "per_request_buffer_limit_bytes: or what takes its place is 5,"},
		"off on the route":     {"            timeout: 0s\n", perRoute("disabled: true"), "error: listener http: filter hold: is not on for any route"},
		"other mode on it":     {"            timeout: 0s\n", perRoute("overrides: {processing_mode: {request_body_mode: STREAMED}}"), "error: " + route + "filter hold: processing_mode.request_body_mode: is STREAMED"},
		"other server on it":   {"            timeout: 0s\n", perRoute("overrides: {grpc_service: {envoy_grpc: {cluster_name: epp}}, metadata_options: {}}"), "warning: " + route + "filter hold: overrides.grpc_service: is epp and not holdgate-server"},
		"open on it":           {"            timeout: 0s\n", perRoute("overrides: {failure_mode_allow: false}"), "note: " + route + "filter hold: failure_mode_allow: is false"},
		"authentication after": {router, filterOf("ext_authz.v3.ExtAuthz") + router, "warning: listener http: filter x: comes after holdgate's, should come before it"},
		"buffer before":        {jwt, filterOf("buffer.v3.Buffer, max_request_bytes: 5") + jwt, "warning: listener http: filter x: comes before holdgate's and reads each request whole"},
		"buffer after":         {router, filterOf("buffer.v3.Buffer, max_request_bytes: 5") + router, "note: listener http: filter x: comes after holdgate's: requests larger"},
		"transcoder before":    {jwt, filterOf("grpc_json_transcoder.v3.GrpcJsonTranscoder") + jwt, "note: listener http: filter x: comes before holdgate's, which sees what it makes"},
		"decompressor after":   {router, filterOf("decompressor.v3.Decompressor") + router, "warning: listener http: filter x: comes after holdgate's and changes bodies"},
		"Lua after":            {router, filterOf("lua.v3.Lua") + router, "note: listener http: filter x: comes after holdgate's: answers that holdgate makes itself"},
		"a picker after":       {router, another + router, "note: listener http: filter picker: is another ext_proc filter after holdgate's: its server gets the answers"},
		"its buffer":           {router, another + router, "note: listener http: filter picker: is another ext_proc filter after holdgate's with the request_body_mode BUFFERED"},
		"its full duplex":      {router, strings.Replace(another, "BUFFERED", "FULL_DUPLEX_STREAMED", 1) + router, "note: listener http: filter picker: is another ext_proc filter after holdgate's that gets bodies in full-duplex mode: give holdgate the --relay"},
		"a picker before":      {jwt, another + jwt, "note: listener http: filter picker: is another ext_proc filter before holdgate's"},
		"routes missing":       {"route_config_name: models", "route_config_name: others", "note: listener http: route_config: is not there"},
		"extension missing":    {"name: hold\n      typed_config", "name: held\n      typed_config", "note: listener http: filter hold: comes by ECDS and is not checked"},
		"rejected":             {"- name: http\n    active", "- name: http\n    error_state: {details: \"no\\u001b[31mway\"}\n    active", `warning: listener http: its last update was rejected, so that Envoy has an older one: no\x1b[31mway`},
		"unknown part":         {"envoy.admin.v3.ScopedRoutesConfigDump", "envoy.admin.v9.Future", "note: config dump: its part envoy.admin.v9.Future is not known"},
		"unknown field":        {"stream_idle_timeout: 360s", "stream_idle_timeout: 360s\n              from_the_future: 1", "note: config dump: has a field that this program does not know"},
		"unknown listener":     {"envoy.config.listener.v3.Listener\n", "envoy.config.listener.v9.Listener\n", `note: config dump: a listener has the type "envoy.config.listener.v9.Listener" and is not checked`},
	} {
		text := foreignDump(t)
		require.Equal(t, 1, strings.Count(text, c.from), "%s: %q", name, c.from)
		found := findingsOf(t, strings.Replace(text, c.from, c.to, 1), CheckOptions{Budget: 5 * time.Minute, Destination: "route"})
		require.Contains(t, strings.Join(found, "\n"), c.want, name)
	}
}

// For an endpoint picker responses may be sent, and the cluster must take its endpoint.
func TestAGatewayWhoseEndpointsHoldgatePicks(t *testing.T) {
	t.Parallel()
	picker := func(cluster string) []string {
		text := strings.NewReplacer(
			"untyped: [holdgate]", "untyped: [holdgate, envoy.lb]}, forwarding_namespaces: {untyped: [envoy.lb.subset_hint]",
			"response_header_mode: SKIP", "response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED",
			"failure_mode_allow: true", "failure_mode_allow: false",
			"name: llm\n      type: EDS", "name: llm\n      "+cluster,
		).Replace(foreignDump(t))
		s, err := ReadSetup([]byte(text))
		require.NoError(t, err)
		r := Check(s, CheckOptions{Budget: 5 * time.Minute})
		require.Equal(t, "endpoint", r.Destination, "by envoy.lb")
		var lines []string
		for _, f := range r.Findings {
			lines = append(lines, f.String())
		}
		return lines
	}
	const cluster = "listener http: virtual host llm.example.com: route chat: cluster: llm does not take its endpoint from x-gateway-destination-endpoint"
	for name, c := range map[string]struct{ cluster, want string }{
		"header":        {"type: ORIGINAL_DST\n      original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}", ""},
		"metadata":      {"type: ORIGINAL_DST\n      original_dst_lb_config: {metadata_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}}", ""},
		"override":      {`load_balancing_policy: {policies: [{typed_extension_config: {name: o, typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost, override_host_sources: [{header: x-gateway-destination-endpoint}]}}}]}`, ""},
		"plain":         {"type: EDS", cluster},
		"another key":   {"type: ORIGINAL_DST\n      original_dst_lb_config: {metadata_key: {key: envoy.lb, path: [{key: other}]}}", cluster},
		"another field": {"type: ORIGINAL_DST\n      original_dst_lb_config: {use_http_header: true}", cluster},
		"another source": {
			`load_balancing_policy: {policies: [{typed_extension_config: {name: o, typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost, override_host_sources: [{header: x-other}]}}}]}`,
			cluster,
		},
	} {
		found := strings.Join(picker(c.cluster), "\n")
		if c.want == "" {
			require.Empty(t, found, name)
		} else {
			require.Contains(t, found, "error: "+c.want, name)
		}
	}
}

func TestTheFilterOfHoldgateIsFound(t *testing.T) {
	t.Parallel()
	const other = `- {name: picker, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor, grpc_service: {envoy_grpc: {cluster_name: epp}}, processing_mode: {response_header_mode: SKIP}}}` + "\n              - name: jwt\n"
	anonymous := func(text string) string {
		return strings.NewReplacer("untyped: [holdgate]", "untyped: [other]", "holdgate-server", "server", "- name: jwt\n", other).Replace(text)
	}
	const mode = "request_body_mode: is "
	for name, c := range map[string]struct {
		change func(string) string
		filter string
		want   string // "" if it is found and right
	}{
		"by the cluster":   {func(s string) string { return strings.ReplaceAll(s, "untyped: [holdgate]", "untyped: [other]") }, "", ""},
		"by the namespace": {func(s string) string { return strings.ReplaceAll(s, "holdgate-server", "server") }, "", ""},
		"by its name":      {anonymous, "hold", ""},
		"another one":      {anonymous, "picker", "error: listener http: filter picker: processing_mode." + mode + "NONE"},
		"no such name":     {anonymous, "h\nx", `error: listeners: have no ext_proc filter with the name h\nx: nothing`},
		"not told":         {anonymous, "", "error: listeners: have several ext_proc filters"},
		"the only one":     {func(s string) string { return strings.ReplaceAll(anonymous(s), other, "- name: jwt\n") }, "", ""},
		"on a route only": {func(s string) string {
			return strings.Replace(anonymous(s), "          route:\n", "          typed_per_filter_config: {picker: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, overrides: {metadata_options: {receiving_namespaces: {untyped: [holdgate]}}}}}\n          route:\n", 1)
		}, "", "error: listener http: virtual host llm.example.com: route chat: filter picker: processing_mode." + mode + "NONE"},
	} {
		found := findingsOf(t, c.change(foreignDump(t)), CheckOptions{Budget: time.Minute, Destination: "route", Filter: c.filter})
		if c.want != "" {
			require.Contains(t, strings.Join(found, "\n"), c.want, name)
			continue
		}
		for _, line := range found {
			require.NotContains(t, line, "error: ", name)
		}
	}
}

func TestOneFindingOfManyRoutesIsListedAFewTimes(t *testing.T) {
	t.Parallel()
	var routes strings.Builder
	for i := range 200 {
		routes.WriteString("        - {name: r" + strconv.Itoa(i) + ", match: {prefix: /}, route: {cluster: llm, timeout: 5s, retry_policy: {retry_on: connect-failure}}}\n")
	}
	found := findingsOf(t, strings.Replace(foreignDump(t), "        routes:\n", "        routes:\n"+routes.String(), 1), CheckOptions{Budget: time.Minute, Destination: "route"})
	require.Len(t, found, mostAlike+1)
	require.Equal(t, "error: 197 other routes: timeout: is 5s, must be 0s: it cuts answers that take longer", found[mostAlike])
}

func TestOneFindingOfManyClustersIsListedAFewTimes(t *testing.T) {
	t.Parallel()
	var routes, clusters strings.Builder
	for i := range 20 {
		name := "c" + strconv.Itoa(i%10)
		routes.WriteString("        - {match: {prefix: /}, route: {cluster: " + name + ", timeout: 0s, retry_policy: {retry_on: connect-failure}}}\n")
		clusters.WriteString("  - cluster: {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: " + name + ", circuit_breakers: {thresholds: [{max_requests: 7, max_retries: 100}]}}\n")
	}
	text := strings.NewReplacer("        routes:\n", "        routes:\n"+routes.String(), "  dynamic_active_clusters:\n", "  dynamic_active_clusters:\n"+clusters.String()).Replace(foreignDump(t))
	found := findingsOf(t, text, CheckOptions{Budget: time.Minute, Destination: "route"})
	require.Len(t, found, mostAlike+1)
	require.Equal(t, "warning: cluster c0: circuit_breakers: allow 7 requests at once: when more are released after a hold, the others end with 503", found[0])
	require.Equal(t, "warning: 7 other clusters: circuit_breakers: allow 7 requests at once: when more are released after a hold, the others end with 503", found[mostAlike])
}

// The tools of gateways print a dump below the names of its Envoy.
func TestAConfigDumpBelowTheNamesOfItsEnvoy(t *testing.T) {
	t.Parallel()
	inside := strings.ReplaceAll(foreignDump(t), "\n", "\n    ")
	s, err := ReadSetup([]byte("namespace:\n  pod:\n    " + inside))
	require.NoError(t, err)
	require.Equal(t, &Report{Destination: "route"}, Check(s, CheckOptions{Budget: 5 * time.Minute}))
	const part = `{configs: [{"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump"}]}`
	_, err = ReadSetup([]byte("namespace:\n  a: " + part + "\n  b: " + part + "\n"))
	require.EqualError(t, err, "reading the config dump: there are 2 of them: save that of one Envoy")
	s, err = ReadSetup([]byte("node: {metadata: {configs: [a]}}"))
	require.NoError(t, err)
	require.False(t, s.Running(), "that is a bootstrap")
}

func TestWhatIsNoConfigDumpIsAnError(t *testing.T) {
	t.Parallel()
	const prefix = "reading the config dump: "
	for text, want := range map[string]string{
		`{"configs": []}`:                   "it has no bootstrap, so it is not all of it",
		`{"configs": [7]}`:                  "",
		`{"configs": [{"@type": 7}]}`:       "",
		`{"configs": [{"a": "\u001b[2J"}]}`: "",
		`{"configs": [{"@type": "a/b.C"}]}`: "it has no bootstrap",
		"configs: [\"\\e[2J\"]":             "",
		`{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "static_listeners": 5}]}`: "",
	} {
		_, err := ReadSetup([]byte(text))
		require.ErrorContains(t, err, prefix+want, text)
		require.Equal(t, printable(err.Error()), err.Error())
	}
}

func TestTheDumpOfARunningEnvoyIsRead(t *testing.T) {
	t.Parallel()
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.RequestURI
		switch r.URL.Path {
		case "/config_dump":
			_, _ = w.Write([]byte("{}"))
		case "/elsewhere":
			http.Redirect(w, r, "/config_dump", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	for at, want := range map[string]string{"": "/config_dump?include_eds", "/": "/config_dump?include_eds", "/config_dump": "/config_dump", "/config_dump?mask=a": "/config_dump?mask=a"} {
		text, err := ReadDump(t.Context(), server.URL+at)
		require.NoError(t, err)
		require.Equal(t, "{}", string(text))
		require.Equal(t, want, asked)
	}
	const question = ": is that the address of its admin interface, which its bootstrap has in admin.address?"
	_, err := ReadDump(t.Context(), server.URL+"/elsewhere")
	require.EqualError(t, err, "asking Envoy for its config dump: it answered 302"+question, "no redirect is followed")
	_, err = ReadDump(t.Context(), server.URL+"/other")
	require.EqualError(t, err, "asking Envoy for its config dump: it answered 404"+question)
	for _, at := range []string{"http://", "https:///config_dump", "http://a b"} {
		_, err = ReadDump(t.Context(), at)
		require.ErrorContains(t, err, "must be http://host:port or unix:///path")
	}
	_, err = ReadDump(t.Context(), "unix://"+filepath.Join(t.TempDir(), "none.sock"))
	require.ErrorContains(t, err, "no such file")
}
