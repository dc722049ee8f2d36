// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"slices"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
)

// extProc checks the settings of a filter that calls Holdgate.
func (c *checker) extProc(path string, p *extprocv3.ExternalProcessor) {
	c.requestModes(path+": processing_mode.", p.GetProcessingMode())
	if c.Destination != toEndpoint {
		c.responseModes(path+": processing_mode.", p.GetProcessingMode())
	}
	if p.GetDisableImmediateResponse() {
		c.bad(path+": disable_immediate_response", "is true, must be false: redirects, errors and held answers are immediate responses")
	}
	if p.GetObservabilityMode() {
		c.bad(path+": observability_mode", "is true, must be false: Envoy would ignore holdgate's decisions")
	}
	c.mutations(path, p)
	c.namespaces(path, p.GetMetadataOptions())
	c.identity(path, p)
	c.failureMode(path, p)
	c.server(path, p)
}

func (c *checker) requestModes(path string, m *extprocv3.ProcessingMode) {
	if is := m.GetRequestBodyMode(); is != extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		c.bad(path+"request_body_mode", "is %v, must be FULL_DUPLEX_STREAMED: any other mode cuts a hold after message_timeout", is)
	}
	if is := m.GetRequestHeaderMode(); is == extprocv3.ProcessingMode_SKIP {
		c.bad(path+"request_header_mode", "is SKIP, must be SEND: no decision without the headers")
	}
	if is := m.GetRequestTrailerMode(); is != extprocv3.ProcessingMode_SEND {
		c.bad(path+"request_trailer_mode", "is %v, must be SEND: the end of a request with trailers is not seen", is)
	}
}

// responseModes checks that answers are not sent to Holdgate. An endpoint picker's filter may
// send them.
func (c *checker) responseModes(path string, m *extprocv3.ProcessingMode) {
	const why = "holdgate ends its side of the stream after the request and does not handle answers"
	if is := m.GetResponseHeaderMode(); is != extprocv3.ProcessingMode_SKIP {
		c.add(c.ifReplica(), path+"response_header_mode", "is %v, must be SKIP: "+why, is)
	}
	if is := m.GetResponseBodyMode(); is != extprocv3.ProcessingMode_NONE {
		c.add(c.ifReplica(), path+"response_body_mode", "is %v, must be NONE: "+why, is)
	}
	if is := m.GetResponseTrailerMode(); is == extprocv3.ProcessingMode_SEND {
		c.add(c.ifReplica(), path+"response_trailer_mode", "is SEND, must be SKIP: "+why)
	}
}

// mutations checks that Holdgate sees the headers of a request and may change them.
func (c *checker) mutations(path string, p *extprocv3.ExternalProcessor) {
	if p.GetAllowModeOverride() {
		c.note(path+": allow_mode_override", "is true, and holdgate overrides no mode")
	}
	if p.GetForwardRules() != nil {
		c.warn(path+": forward_rules", "is set, should be missing: holdgate sees only some of the headers, and needs those that begin with a colon, x-request-id, content-length, content-type, content-encoding, authorization, x-api-key, x-wake-* and x-holdgate-*")
	}
	rules := p.GetMutationRules()
	if rules.GetDisallowAll().GetValue() {
		c.warn(path+": mutation_rules.disallow_all", "is true, should be false: callers' keys and the headers x-wake-* reach the engines")
	}
	if c.Destination != toReplica {
		return
	}
	if !rules.GetAllowAllRouting().GetValue() {
		c.warn(path+": mutation_rules.allow_all_routing", "is false, should be true: the host of a backend, or of Ollama, does not replace the client's")
	}
	if p.GetDisableClearRouteCache() || p.GetRouteCacheAction() == extprocv3.ExternalProcessor_RETAIN {
		c.warn(path+": route_cache_action", "is RETAIN, should be DEFAULT: backends over TLS and --cors-origins need that the route is chosen again")
	}
}

// namespaces checks the namespaces of dynamic metadata that Holdgate may write and reads.
func (c *checker) namespaces(path string, o *extprocv3.MetadataOptions) {
	path += ": metadata_options."
	receiving := o.GetReceivingNamespaces().GetUntyped()
	if !slices.Contains(receiving, Namespace) {
		if c.Destination == toReplica {
			c.bad(path+"receiving_namespaces.untyped", "lacks %s: no request would find its destination", Namespace)
		} else {
			c.warn(path+"receiving_namespaces.untyped", "lacks %s: the access log does not say which requests are holdgate's, so slots are not limited, and routes cannot restore content-length", Namespace)
		}
	}
	if c.Destination != toEndpoint {
		return
	}
	if !slices.Contains(receiving, PickedNamespace) {
		c.warn(path+"receiving_namespaces.untyped", "lacks %s: the endpoint is only in the header %s, and not in the metadata", PickedNamespace, PickedHeader)
	}
	if !slices.Contains(o.GetForwardingNamespaces().GetUntyped(), HintNamespace) {
		c.note(path+"forwarding_namespaces.untyped", "lacks %s: holdgate does not learn to which endpoints a request is restricted", HintNamespace)
	}
}

// failureMode checks what happens to requests while Holdgate is down.
func (c *checker) failureMode(path string, p *extprocv3.ExternalProcessor) {
	path += ": failure_mode_allow"
	switch allow := p.GetFailureModeAllow(); {
	case !allow && c.Destination == toRoute:
		c.note(path, "is false: while holdgate is down every request fails, warm or not. That is right if holdgate authenticates the callers")
	case allow && c.Destination == toRoute:
		c.leavesOut(path, p)
	case allow:
		c.warn(path, "is true, should be false: a request that passes without holdgate has no destination")
	}
}

// leavesOut checks that Envoy does not call a Holdgate that is down.
func (c *checker) leavesOut(path string, p *extprocv3.ExternalProcessor) {
	cluster := c.cluster(serverOf(p))
	if cluster == nil {
		return
	}
	panics := cluster.GetCommonLbConfig().GetHealthyPanicThreshold()
	if len(cluster.GetHealthChecks()) == 0 || panics == nil || panics.GetValue() > 0 {
		c.warn(path, "is true, but cluster %s has no health check, or no common_lb_config.healthy_panic_threshold of 0 (its default is %d): while holdgate is down, requests with a body still end with 500", cluster.GetName(), panicDefault)
	}
}

// server checks the cluster that ext_proc connects to.
func (c *checker) server(path string, p *extprocv3.ExternalProcessor) {
	if p.GetHttpService() != nil || p.GetGrpcService() == nil {
		c.bad(path+": grpc_service", "is missing: holdgate is called by gRPC")
		return
	}
	name := p.GetGrpcService().GetEnvoyGrpc().GetClusterName()
	switch cluster := c.cluster(name); {
	case name == "":
		c.note(path+": grpc_service", "is not an envoy_grpc service: its limits are not checked")
	case cluster == nil && c.running:
		c.bad(path+": grpc_service", "names the cluster %s, which is not there", name)
	case cluster == nil:
		c.note(path+": grpc_service", "cluster %s is not a static one: its max_requests is not checked, and the default of %d fails held request %d", name, requestsDefault, requestsDefault+1)
	default:
		c.holdgateCluster("cluster "+name+": ", cluster)
	}
}

// The filters that decide who may call.
var authenticating = []string{
	"envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
	"envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
	"envoy.extensions.filters.http.rbac.v3.RBAC",
	"envoy.extensions.filters.http.basic_auth.v3.BasicAuth",
	"envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
	"envoy.extensions.filters.http.oauth2.v3.OAuth2",
	"envoy.extensions.filters.http.ratelimit.v3.RateLimit",
	"envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
}

// Filters that read or change bodies.
const (
	bufferFilter       = "envoy.extensions.filters.http.buffer.v3.Buffer"
	decompressorFilter = "envoy.extensions.filters.http.decompressor.v3.Decompressor"
	transcoderFilter   = "envoy.extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder"
	luaFilter          = "envoy.extensions.filters.http.lua.v3.Lua"
	wasmFilter         = "envoy.extensions.filters.http.wasm.v3.Wasm"
)

// neighbors checks the filters before and after the first of ours.
func (c *checker) neighbors(m *manager) {
	at := slices.Index(m.filters, m.ours[0])
	for i, f := range m.filters {
		path := m.path + ": filter " + f.name
		switch {
		case slices.Contains(m.ours, f):
		case i < at:
			c.before(path, f)
		default:
			c.after(path, f)
		}
	}
}

func (c *checker) before(path string, f *httpFilter) {
	switch {
	case f.kind == bufferFilter:
		c.warn(path, "comes before holdgate's and reads each request whole: larger ones than its max_request_bytes are answered with 413, and each held request is in memory twice")
	case f.kind == transcoderFilter:
		c.note(path, "comes before holdgate's, which sees what it makes of a request")
	case f.proc != nil:
		c.note(path, "is another ext_proc filter before holdgate's: it also sees each request that comes back through --relay")
	}
}

func (c *checker) after(path string, f *httpFilter) {
	switch {
	case slices.Contains(authenticating, f.kind):
		c.warn(path, "comes after holdgate's, should come before it: requests that it refuses are held before, and wake models")
	case f.kind == bufferFilter:
		c.note(path, "comes after holdgate's: requests larger than its max_request_bytes are answered with 413 after their hold")
	case f.kind == decompressorFilter:
		c.warn(path, "comes after holdgate's and changes bodies: a content-length that the route takes from the metadata %s is wrong then", Namespace)
	case f.proc != nil:
		c.picker(path, f.proc)
	case f.kind == luaFilter || f.kind == wasmFilter:
		c.note(path, "comes after holdgate's: answers that holdgate makes itself run through it, of requests that it has not seen")
	}
}

// picker checks another ext_proc filter after Holdgate's.
func (c *checker) picker(path string, p *extprocv3.ExternalProcessor) {
	if is := p.GetProcessingMode().GetResponseHeaderMode(); is != extprocv3.ProcessingMode_SKIP {
		c.note(path, "is another ext_proc filter after holdgate's: its server gets the answers that holdgate makes itself, of requests that it has not seen")
	}
	switch is := p.GetProcessingMode().GetRequestBodyMode(); is {
	case extprocv3.ProcessingMode_BUFFERED, extprocv3.ProcessingMode_BUFFERED_PARTIAL:
		c.note(path, "is another ext_proc filter after holdgate's with the request_body_mode %v: Envoy keeps each body whole for it, and answers larger ones than its buffer with 413", is)
	case extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		c.note(path, "is another ext_proc filter after holdgate's that gets bodies in full-duplex mode: give holdgate the --relay of this listener, or the engine gets the body of a request with trailers twice where the route has a retry policy")
	default:
	}
}

// isPickerKey reports whether a header or a key of metadata has the endpoint of a request.
func isPickerKey(s string) bool { return strings.EqualFold(s, PickedHeader) }
