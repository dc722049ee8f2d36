// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"slices"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// Envoy's defaults for a missing field.
	idleDefault     = 5 * time.Minute
	requestsDefault = 1024
)

// Finding is one problem or note that Check reports.
type Finding struct {
	// Path is the place in the bootstrap.
	Path string
	// Text tells the present value, the required one, and what breaks otherwise.
	Text string
	// Note marks something that could not be checked, or that may be correct.
	Note bool
}

// String returns the finding as one line.
func (f Finding) String() string {
	if f.Note {
		return f.Path + ": note: " + f.Text
	}
	return f.Path + ": " + f.Text
}

// checker collects findings.
type checker struct {
	bootstrap *bootstrapv3.Bootstrap
	budget    time.Duration
	found     []Finding

	identityMetadata string
}

// Check reports what in b would break holds of up to budget, or the lookup of the
// caller at identityMetadata unless that is empty. It examines each ext_proc filter of
// the static listeners.
func Check(b *bootstrapv3.Bootstrap, budget time.Duration, identityMetadata string) []Finding {
	c := &checker{bootstrap: b, budget: budget, identityMetadata: identityMetadata}
	filters := 0
	for _, l := range b.GetStaticResources().GetListeners() {
		for _, manager := range c.managers(l) {
			filters += c.manager(l.GetName(), manager)
		}
	}
	if filters == 0 {
		c.bad("static_resources.listeners", "have no ext_proc filter: nothing would be held")
	} else {
		c.lanes()
	}
	return c.found
}

func (c *checker) bad(path, format string, args ...any) {
	c.found = append(c.found, Finding{Path: path, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) note(path, format string, args ...any) {
	c.found = append(c.found, Finding{Path: path, Text: fmt.Sprintf(format, args...), Note: true})
}

// managers returns the HTTP connection managers of l.
func (c *checker) managers(l *listenerv3.Listener) []*hcmv3.HttpConnectionManager {
	chains := l.GetFilterChains()
	if chain := l.GetDefaultFilterChain(); chain != nil {
		chains = append(slices.Clone(chains), chain)
	}
	var managers []*hcmv3.HttpConnectionManager
	for _, chain := range chains {
		for _, f := range chain.GetFilters() {
			m := &hcmv3.HttpConnectionManager{}
			if f.GetTypedConfig().MessageIs(m) && c.unpack(f.GetTypedConfig().UnmarshalTo(m), l.GetName()) {
				managers = append(managers, m)
			}
		}
	}
	return managers
}

func (c *checker) unpack(err error, listener string) bool {
	if err != nil {
		c.bad("listener "+listener, "cannot be read: %v", err)
	}
	return err == nil
}

// manager checks m if it has ext_proc filters, and returns how many it has.
func (c *checker) manager(listener string, m *hcmv3.HttpConnectionManager) int {
	var names []string
	for _, f := range m.GetHttpFilters() {
		p := &extprocv3.ExternalProcessor{}
		if !f.GetTypedConfig().MessageIs(p) || !c.unpack(f.GetTypedConfig().UnmarshalTo(p), listener) {
			continue
		}
		names = append(names, f.GetName())
		path := "listener " + listener + ": filter " + f.GetName()
		c.processingMode(path, p.GetProcessingMode())
		c.extProc(path, p)
		c.identity(path, p)
		c.cluster(path, p.GetGrpcService())
		c.accessLog("listener "+listener, m, p)
	}
	if len(names) == 0 {
		return 0
	}
	path := "listener " + listener
	c.idle(path+": stream_idle_timeout", m.GetStreamIdleTimeout(), idleDefault)
	c.total(path+": common_http_protocol_options.max_stream_duration", m.GetCommonHttpProtocolOptions().GetMaxStreamDuration())
	c.routes(path, m, names)
	return len(names)
}

func (c *checker) processingMode(path string, m *extprocv3.ProcessingMode) {
	path += ": processing_mode."
	if is := m.GetRequestBodyMode(); is != extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		c.bad(path+"request_body_mode", "is %v, must be FULL_DUPLEX_STREAMED: any other mode cuts a hold after message_timeout", is)
	}
	if is := m.GetRequestHeaderMode(); is == extprocv3.ProcessingMode_SKIP {
		c.bad(path+"request_header_mode", "is SKIP, must be SEND: no decision without the headers")
	}
	if is := m.GetRequestTrailerMode(); is != extprocv3.ProcessingMode_SEND {
		c.bad(path+"request_trailer_mode", "is %v, must be SEND: the end of a request with trailers is not seen", is)
	}
	if is := m.GetResponseHeaderMode(); is != extprocv3.ProcessingMode_SKIP {
		c.bad(path+"response_header_mode", "is %v, must be SKIP: holdgate ends its side of the stream after the request and does not handle answers", is)
	}
	if is := m.GetResponseBodyMode(); is != extprocv3.ProcessingMode_NONE {
		c.bad(path+"response_body_mode", "is %v, must be NONE: holdgate ends its side of the stream after the request and does not handle answers", is)
	}
	if is := m.GetResponseTrailerMode(); is == extprocv3.ProcessingMode_SEND {
		c.bad(path+"response_trailer_mode", "is SEND, must be SKIP: holdgate ends its side of the stream after the request and does not handle answers")
	}
}

func (c *checker) extProc(path string, p *extprocv3.ExternalProcessor) {
	options := p.GetMetadataOptions().GetReceivingNamespaces()
	if !slices.Contains(options.GetUntyped(), Namespace) {
		c.bad(path+": metadata_options.receiving_namespaces.untyped", "lacks %s: no request would find its destination", Namespace)
	}
	if p.GetDisableImmediateResponse() {
		c.bad(path+": disable_immediate_response", "is true, must be false: redirects, errors and held answers are immediate responses")
	}
	if p.GetObservabilityMode() {
		c.bad(path+": observability_mode", "is true, must be false: Envoy would ignore holdgate's decisions")
	}
}

// cluster checks the circuit breaker of the cluster that ext_proc connects to.
func (c *checker) cluster(path string, service *corev3.GrpcService) {
	name := service.GetEnvoyGrpc().GetClusterName()
	if name == "" {
		c.note(path+": grpc_service", "is not an envoy_grpc service: its limits are not checked")
		return
	}
	for _, cluster := range c.bootstrap.GetStaticResources().GetClusters() {
		if cluster.GetName() == name {
			c.maxRequests("cluster "+name+": circuit_breakers.max_requests", cluster)
			return
		}
	}
	c.note(path+": grpc_service", "cluster %s is not a static one: its max_requests is not checked, and the default of %d fails held request %d", name, requestsDefault, requestsDefault+1)
}

func (c *checker) maxRequests(path string, cluster *clusterv3.Cluster) {
	limit := uint32(requestsDefault)
	for _, t := range cluster.GetCircuitBreakers().GetThresholds() {
		if t.GetPriority() == corev3.RoutingPriority_DEFAULT && t.GetMaxRequests() != nil {
			limit = t.GetMaxRequests().GetValue()
		}
	}
	finding := Finding{Path: path, Text: fmt.Sprintf("is %d, must be larger: each held request is one open stream, and request %d fails, warm or held", limit, uint64(limit)+1)}
	if limit <= requestsDefault && !slices.Contains(c.found, finding) {
		c.found = append(c.found, finding)
	}
}

// idle checks a timeout that would cut a silent hold; 0 disables the timeout.
func (c *checker) idle(path string, d *durationpb.Duration, missing time.Duration) {
	is := missing
	if d != nil {
		is = d.AsDuration()
	}
	if is > 0 && is <= c.budget {
		c.bad(path, "is %v, must be 0s or above the hold budget of %v: it cuts a silent hold", is, c.budget)
	}
}

// total checks a limit on the whole request; missing and 0 mean no limit.
func (c *checker) total(path string, d *durationpb.Duration) {
	if is := d.AsDuration(); is > 0 {
		c.bad(path, "is %v, must be 0s or missing: it cuts holds and long answers", is)
	}
}
