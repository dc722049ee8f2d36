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
	// delayedClose is how long Envoy waits for the client to close a connection that it
	// ends itself. A client sees the end of an answer that was cut that much later; with
	// Envoy's default that is 1 s.
	delayedClose = 100 * time.Millisecond
	// laneMode lets only Envoy's own user connect to a socket.
	laneMode         = 0o600
	connectionBuffer = 1 << 20
	// The lanes take what the edge has let in, and what is added on the way: ids, the
	// destination, an engine's key, the word on a failed attempt.
	laneRequestHeadersKiB = MaxRequestHeaderBytes>>10 + 16
	laneRequestHeaders    = MaxRequestHeaders + 28
	uploadTimeout         = time.Minute
	requestHeadersTimeout = 10 * time.Second
	retryBackOff          = time.Millisecond
	retryBackOffMax       = 5 * time.Millisecond
	retriedAfter          = "connect-failure,refused-stream,reset-before-request,reset"
	onHeaders             = "retriable-headers"
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
	return []*listenerv3.Listener{
		edge,
		r.listener(reholdListener, r.addresses.rehold, r.rehold()),
		r.listener(relayListener, r.addresses.relay, r.relay()),
	}
}

func (r *renderer) listener(name string, at endpoint, manager *hcmv3.HttpConnectionManager) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:                          name,
		Address:                       at.own(),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(connectionBuffer),
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name:       connectionManagerName,
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: r.pack(manager)},
			}},
		}},
	}
}

// manager is what the three listeners share. Nothing is added to a request or
// an answer that can be left out.
func (r *renderer) manager(name string) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		CodecType:  hcmv3.HttpConnectionManager_AUTO,
		StatPrefix: name,
		// Silent holds outlive the default of 300 s; the hold budget is the clock.
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
	r.trust(m)
	m.DelayedCloseTimeout = durationpb.New(delayedClose)
	// Bounds a slow upload; it stops when the request is complete.
	m.RequestTimeout = durationpb.New(uploadTimeout)
	m.RequestHeadersTimeout = durationpb.New(requestHeadersTimeout)
	m.EarlyHeaderMutationExtensions = append(m.EarlyHeaderMutationExtensions, r.dropForgedHeaders())
	m.LocalReplyConfig = ownErrors()
	m.RouteSpecifier = r.edgeRoutes(header(ViaHeader, streamMetadata, appendOrAdd))
	m.HttpFilters = append(r.streamName(), r.extProc(LaneEdge), r.router())
	return m
}

// laneManager is a manager behind the edge.
func (r *renderer) laneManager(name string) *hcmv3.HttpConnectionManager {
	m := r.manager(name)
	m.MaxRequestHeadersKb = wrapperspb.UInt32(laneRequestHeadersKiB)
	m.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxHeadersCount: wrapperspb.UInt32(laneRequestHeaders)}
	return m
}

func (r *renderer) rehold() *hcmv3.HttpConnectionManager {
	m := r.laneManager(reholdListener)
	m.LocalReplyConfig = ownErrors()
	m.RouteSpecifier = inline(r.destinationRoutes())
	m.HttpFilters = []*hcmv3.HttpFilter{r.extProc(LaneRehold), r.router()}
	return m
}

func (r *renderer) relay() *hcmv3.HttpConnectionManager {
	m := r.laneManager(relayListener)
	m.LocalReplyConfig = flaggedErrors()
	m.RouteSpecifier = r.relayRoutes()
	m.HttpFilters = []*hcmv3.HttpFilter{r.destinationFromHeader(), r.router()}
	return m
}

// destinationRoutes sends everything to the destination that ext_proc named, with these
// headers. What the edge adds the lane gets too.
func (r *renderer) destinationRoutes(add ...*corev3.HeaderValueOption) *routev3.VirtualHost {
	host := everything(&routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: destinationsCluster},
		Timeout:          durationpb.New(0),
		RetryPolicy: &routev3.RetryPolicy{
			RetryOn:    retriedAfter + "," + onHeaders,
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
	host.Routes = r.overTLSToo(host.GetRoutes()[0])
	//nolint:staticcheck // request_body_buffer_limit does not exist before Envoy 1.40.
	host.PerRequestBufferLimitBytes = wrapperspb.UInt32(uint32(r.config.MaxRequestBytes + bodyHeadroom)) //nolint:gosec // parse bounds it.
	// Full-duplex mode drops content-length; ext_proc names it again.
	r.hideTrust(host)
	host.RequestHeadersToAdd = slices.Concat(add, []*corev3.HeaderValueOption{header("content-length", contentLengthMetadata, overwriteOrAdd)})
	// A key that is missing adds no header. An engine's own timings stay.
	host.ResponseHeadersToAdd = []*corev3.HeaderValueOption{
		requestIDInAnswer(),
		header("x-ratelimit-remaining-requests", rateLimitMetadata, overwriteOrAdd),
		header("server-timing", serverTimingMetadata, appendOrAdd),
	}
	return host
}

// requestIDInAnswer gives an answer the request's id as ext_proc may have replaced it.
// Envoy's always_set_request_id_in_response would put a client's own id into the
// answers that Holdgate makes, where ext_proc cannot change the request.
func requestIDInAnswer() *corev3.HeaderValueOption {
	return header(requestIDHeader, requestIDInForce, overwriteOrAdd)
}

func (r *renderer) relayRoutes() *hcmv3.HttpConnectionManager_RouteConfig {
	host := everything(&routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: relayCluster},
		Timeout:          durationpb.New(0),
	})
	// Only the mapper of flaggedErrors may say this to Holdgate, no engine.
	host.GetRoutes()[0].ResponseHeadersToRemove = []string{FlagsHeader}
	host.Routes = r.relayOverTLSToo(host.GetRoutes()[0])
	return inline(host)
}

// everything is a virtual host with one route for all paths.
func everything(action *routev3.RouteAction) *routev3.VirtualHost {
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
