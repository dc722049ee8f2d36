// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Settings that a Config does not change.
const (
	heapRefresh = 250 * time.Millisecond
	// delayedClose is how long Envoy waits for the client to close a connection that
	// Envoy ends. The client of an answer that was cut notices the end that much later;
	// Envoy's default is 1 s.
	delayedClose = 100 * time.Millisecond
	// laneMode restricts a socket to the user that runs Envoy.
	laneMode         = 0o600
	connectionBuffer = 1 << 20
	// The lanes accept what the edge accepts, and what is added on the way: ids, the
	// destination, an engine's key, the report of a failed attempt.
	laneRequestHeadersKiB = MaxRequestHeaderBytes>>10 + 16
	laneRequestHeaders    = MaxRequestHeaders + 28
	uploadTimeout         = time.Minute
	requestHeadersTimeout = 10 * time.Second
	retryBackOff          = time.Millisecond
	retryBackOffMax       = 5 * time.Millisecond
	retryConditions       = "connect-failure,refused-stream,reset-before-request,reset"
	retryOnHeaders        = "retriable-headers"
	contentLengthMetadata = "%DYNAMIC_METADATA(holdgate:content_length)%"
	streamMetadata        = "%DYNAMIC_METADATA(holdgate:stream)%"
	rateLimitMetadata     = "%DYNAMIC_METADATA(holdgate:ratelimit_remaining)%"
	serverTimingMetadata  = "%DYNAMIC_METADATA(holdgate:server_timing)%"
	requestIDHeader       = "x-request-id"
	requestIDInForce      = "%REQ(X-REQUEST-ID)%"
	connectionManagerName = "envoy.filters.network.http_connection_manager"
	overwriteOrAdd        = corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	appendOrAdd           = corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
)

func (r *renderer) listeners() []*listenerv3.Listener {
	edge := r.listener(edgeListener, r.addresses.edge, r.edge())
	edge.GetFilterChains()[0].TransportSocket = r.edgeTLS()
	if r.config.ProxyProtocol {
		edge.ListenerFilters = append(edge.ListenerFilters, r.proxyProtocol())
	}
	return append([]*listenerv3.Listener{
		edge,
		r.listener(reholdListener, r.addresses.rehold, r.rehold()),
		r.listener(relayListener, r.addresses.relay, r.relay()),
	}, r.poolListeners()...)
}

func (r *renderer) listener(name string, at endpoint, manager *hcmv3.HttpConnectionManager) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:                          name,
		Address:                       at.listenAddress(),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(connectionBuffer),
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name:       connectionManagerName,
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: r.pack(manager)},
			}},
		}},
	}
}

// manager returns the settings that the three listeners share. It adds nothing to
// requests or answers that is not needed.
func (r *renderer) manager(name string) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		CodecType:  hcmv3.HttpConnectionManager_AUTO,
		StatPrefix: name,
		// Silent holds may last longer than the default of 300 s; the hold budget
		// limits them.
		StreamIdleTimeout:          durationpb.New(r.config.HoldMax + idleHeadroom),
		MaxRequestHeadersKb:        wrapperspb.UInt32(MaxRequestHeaderBytes >> 10),
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
	}
}

func (r *renderer) edge() *hcmv3.HttpConnectionManager {
	m := r.manager(edgeListener)
	log := LogEdge
	if r.config.forwarded() {
		log = LogForwarded
	}
	m.AccessLog = append(m.AccessLog, r.grpcLog(log))
	r.clientAddress(m)
	m.DelayedCloseTimeout = durationpb.New(delayedClose)
	// Limits a slow upload; the timer stops when the request is complete.
	m.RequestTimeout = durationpb.New(uploadTimeout)
	m.RequestHeadersTimeout = durationpb.New(requestHeadersTimeout)
	m.EarlyHeaderMutationExtensions = append(m.EarlyHeaderMutationExtensions, r.dropForgedHeaders())
	m.LocalReplyConfig = envoyErrors()
	m.RouteSpecifier = r.edgeRoutes(header(ViaHeader, streamMetadata, appendOrAdd))
	m.HttpFilters = append(r.streamIDFilters(), r.extProc(LaneEdge), r.router())
	return m
}

// laneManager returns the connection manager of a lane.
func (r *renderer) laneManager(name string) *hcmv3.HttpConnectionManager {
	m := r.manager(name)
	m.MaxRequestHeadersKb = wrapperspb.UInt32(laneRequestHeadersKiB)
	m.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxHeadersCount: wrapperspb.UInt32(laneRequestHeaders)}
	return m
}

func (r *renderer) rehold() *hcmv3.HttpConnectionManager {
	m := r.laneManager(reholdListener)
	m.LocalReplyConfig = envoyErrors()
	m.RouteSpecifier = inline(r.destinationRoutes())
	m.HttpFilters = []*hcmv3.HttpFilter{r.extProc(LaneRehold), r.router()}
	return m
}

func (r *renderer) relay() *hcmv3.HttpConnectionManager {
	m := r.laneManager(relayListener)
	m.LocalReplyConfig = relayErrors()
	m.RouteSpecifier = r.relayRoutes()
	m.HttpFilters = []*hcmv3.HttpFilter{r.destinationFromHeader(), r.router()}
	return m
}

// destinationRoutes returns a virtual host that sends every request to the destination
// named by ext_proc, with the headers of add. Headers that the edge adds also reach the
// lanes.
func (r *renderer) destinationRoutes(add ...*corev3.HeaderValueOption) *routev3.VirtualHost {
	host := catchAll(&routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: destinationsCluster},
		Timeout:          durationpb.New(0),
		RetryPolicy: &routev3.RetryPolicy{
			RetryOn:    retryConditions + "," + retryOnHeaders,
			NumRetries: wrapperspb.UInt32(1),
			RetriableHeaders: []*routev3.HeaderMatcher{{
				Name: notTakenHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
			}},
			RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
				BaseInterval: durationpb.New(retryBackOff),
				MaxInterval:  durationpb.New(retryBackOffMax),
			},
		},
	})
	host.GetRoutes()[0].ResponseHeadersToRemove = []string{notTakenHeader}
	host.Routes = r.withPoolRoutes(host.GetRoutes()[0], r.withTLSRoutes(host.GetRoutes()[0]))
	//nolint:staticcheck // request_body_buffer_limit does not exist before Envoy 1.40.
	host.PerRequestBufferLimitBytes = wrapperspb.UInt32(uint32(r.config.MaxRequestBytes + bodyHeadroom)) //nolint:gosec // parse bounds it.
	r.removeTrustHeaders(host)
	// Full-duplex mode drops content-length; ext_proc provides it again.
	host.RequestHeadersToAdd = slices.Concat(add, []*corev3.HeaderValueOption{header("content-length", contentLengthMetadata, overwriteOrAdd)})
	// A missing key adds no header. An engine's own server-timing stays.
	host.ResponseHeadersToAdd = []*corev3.HeaderValueOption{
		requestIDInAnswer(),
		header("x-ratelimit-remaining-requests", rateLimitMetadata, overwriteOrAdd),
		header("server-timing", serverTimingMetadata, appendOrAdd),
	}
	return host
}

// requestIDInAnswer adds the request id, which ext_proc may have replaced, to an
// answer. Envoy's always_set_request_id_in_response would put a client's own id into
// the answers that Holdgate makes, where ext_proc cannot change the request.
func requestIDInAnswer() *corev3.HeaderValueOption {
	return header(requestIDHeader, requestIDInForce, overwriteOrAdd)
}

func (r *renderer) relayRoutes() *hcmv3.HttpConnectionManager_RouteConfig {
	host := catchAll(&routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: relayCluster},
		Timeout:          durationpb.New(0),
	})
	// Only relayErrors may set this header for Holdgate, no engine.
	host.GetRoutes()[0].ResponseHeadersToRemove = []string{FlagsHeader}
	host.Routes = r.withPoolRelayRoutes(host.GetRoutes()[0], r.withRelayTLSRoutes(host.GetRoutes()[0]))
	return inline(host)
}

// catchAll returns a virtual host with one route for all paths.
func catchAll(action *routev3.RouteAction) *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name:    "all",
		Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: action},
		}},
	}
}

func inline(host *routev3.VirtualHost) *hcmv3.HttpConnectionManager_RouteConfig {
	return &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{host}}}
}

func header(key, value string, action corev3.HeaderValueOption_HeaderAppendAction) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, Value: value},
		AppendAction: action,
	}
}
