// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	tometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/settings"
)

// pool is an entry of Config.Pools.
type pool struct {
	name         string
	lane, picker endpoint
	tls          bool
}

// parsePools parses Config.Pools.
func (c Config) parsePools(p *settings.Problems) []pool {
	var all []pool
	names := map[string]bool{}
	for _, s := range c.Pools {
		next, err := c.parsePool(s)
		if err == nil && names[next.name] {
			err = fmt.Errorf("%s is given twice", next.name)
		}
		names[next.name] = true
		p.Check("Pools", err)
		all = append(all, next)
	}
	return all
}

func (c Config) parsePool(s string) (next pool, err error) {
	name, picker, found := strings.Cut(s, "=")
	if !found {
		return next, fmt.Errorf("must be NAME=host:port, NAME=https://host:port or NAME=unix:///path, is %q", s)
	}
	if err := protocol.CheckPool(name); err != nil {
		return next, fmt.Errorf("the name %w, is %q", err, name)
	}
	next.name = name
	if next.lane, err = parsePipe(filepath.Join(c.LanesDir, protocol.PoolSocket(name))); err != nil {
		return next, err
	}
	picker, next.tls = strings.CutPrefix(picker, "https://")
	if next.picker, err = parseTarget(picker); err != nil {
		return next, err
	}
	switch {
	case next.tls && next.picker.pipe != "":
		return next, errors.New("there is no TLS on a unix socket")
	case next.picker.pipe != "" || loopback(next.picker.host) || c.PoolInsecure:
	case !next.tls:
		return next, errors.New("is an address that others can reach: anyone on the way sees all requests and answers. Use https://, a loopback address or a unix socket. --pool-insecure allows it")
	case c.PoolCAFile == "":
		return next, errors.New("is an address that others can reach, and the certificate is not checked: name the authorities with --pool-ca-file. --pool-insecure allows it")
	}
	return next, nil
}

func (p *pool) laneCluster() string      { return "pool_" + p.name }
func (p *pool) pickerCluster() string    { return "picker_" + p.name }
func (p *pool) endpointsCluster() string { return "endpoints_" + p.name }
func (p *pool) destinations() string     { return destinationsCluster + "_" + p.laneCluster() }

// poolClusters returns the clusters of each pool: what takes the place of destinations, the
// lane, the picker, and the endpoints that the picker names.
func (r *renderer) poolClusters() []*clusterv3.Cluster {
	var all []*clusterv3.Cluster
	for _, p := range r.addresses.pools {
		lane := r.lane()
		lane.Name, lane.LoadAssignment = p.laneCluster(), static(p.laneCluster(), p.lane).GetLoadAssignment()
		picker := r.grpcCluster(p.pickerCluster(), p.picker, streamWindow)
		picker.TransportSocket = r.pickerTLS(p)
		all = append(all,
			r.destinations(p.destinations(), p.laneCluster(), nil), lane, picker, r.originalDestination(p.endpointsCluster()))
	}
	return all
}

// pickerTLS returns the TLS settings of the connections to a picker, nil for plain text.
func (r *renderer) pickerTLS(p pool) *corev3.TransportSocket {
	if !p.tls {
		return nil
	}
	sni, name := p.picker.serverName()
	settings := &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{"h2"},
		// Envoy's default maximum as a client is 1.2.
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		},
	}
	if r.config.PoolCAFile != "" {
		settings.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa:                 inFile(caFile(r.config.PoolCAFile)),
			MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{name},
		}}
	}
	return r.tls(&tlsv3.UpstreamTlsContext{Sni: sni, CommonTlsContext: settings})
}

// poolListeners returns the lane of each pool.
func (r *renderer) poolListeners() []*listenerv3.Listener {
	var all []*listenerv3.Listener
	for _, p := range r.addresses.pools {
		m := r.laneManager(p.laneCluster())
		m.LocalReplyConfig = poolErrors()
		m.EarlyHeaderMutationExtensions = append(m.EarlyHeaderMutationExtensions, r.dropHeaders(PickedHeader))
		m.RouteSpecifier = inline(catchAll(&routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: p.endpointsCluster()},
			Timeout:          durationpb.New(0),
		}))
		m.HttpFilters = []*hcmv3.HttpFilter{r.picker(&p), r.firstEndpoint(), r.router()}
		all = append(all, r.listener(p.laneCluster(), p.lane, m))
	}
	return all
}

// picker returns the filter of an endpoint picker, which sees requests and answers.
func (r *renderer) picker(p *pool) *hcmv3.HttpFilter {
	service := grpcService(p.pickerCluster())
	service.Timeout = durationpb.New(0)
	return r.filter(extProcFilter, &extprocv3.ExternalProcessor{
		GrpcService:    service,
		MessageTimeout: durationpb.New(messageTimeout),
		// Holdgate takes it for an answer of a pool that did not take the request.
		StatusOnError: &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode:   extprocv3.ProcessingMode_SEND,
			RequestBodyMode:     extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			RequestTrailerMode:  extprocv3.ProcessingMode_SEND,
			ResponseHeaderMode:  extprocv3.ProcessingMode_SEND,
			ResponseBodyMode:    extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseTrailerMode: extprocv3.ProcessingMode_SEND,
		},
		MetadataOptions: &extprocv3.MetadataOptions{
			ReceivingNamespaces: &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{PickedNamespace}},
		},
	})
}

// firstEndpoint makes the first endpoint that the picker has named the destination: a cluster
// of the type ORIGINAL_DST reads no list.
func (r *renderer) firstEndpoint() *hcmv3.HttpFilter {
	return r.filter("envoy.filters.http.header_to_metadata", &tometadatav3.Config{
		RequestRules: []*tometadatav3.Config_Rule{{
			Header: PickedHeader,
			OnHeaderPresent: &tometadatav3.Config_KeyValuePair{
				MetadataNamespace: Namespace,
				Key:               FirstKey,
				RegexValueRewrite: &matcherv3.RegexMatchAndSubstitute{
					Pattern:      &matcherv3.RegexMatcher{Regex: `^\s*([^,\s]*).*$`},
					Substitution: `\1`,
				},
			},
			Remove: true,
		}},
	})
}

// diedFlags are Envoy's response flags of a request whose engine ended the connection after it
// had the request.
var diedFlags = []string{"UC", "UR", "UPE"}

// poolErrors returns a configuration of the errors of a pool's lane. An engine that died may
// have done its work, so the client gets 502. Any other error is Envoy's own text: Holdgate
// takes a 503 in text for a request that no engine had.
func poolErrors() *hcmv3.LocalReplyConfig {
	died := envoyError{
		op: accesslogv3.ComparisonFilter_GE, status: 500, becomes: 502,
		answer: refusal.BrokenAnswer("the engine ended the connection before it answered"), kind: "api_error",
	}
	var mappers []*hcmv3.ResponseMapper
	for _, anthropic := range []bool{true, false} {
		m := died.mapper(anthropic)
		and := m.GetFilter().GetAndFilter()
		and.Filters = append(and.Filters, &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: diedFlags},
		}})
		mappers = append(mappers, m)
	}
	return &hcmv3.LocalReplyConfig{Mappers: mappers}
}

// withPoolRoutes returns a copy of route for the requests of each pool, before rest. Requests
// of a pool that this bootstrap does not have are refused.
func (r *renderer) withPoolRoutes(route *routev3.Route, rest []*routev3.Route) []*routev3.Route {
	var routes []*routev3.Route
	for _, p := range r.addresses.pools {
		to := proto.CloneOf(route)
		to.Match.DynamicMetadata = append(to.Match.DynamicMetadata, metadataIs(PoolKey, exactly(p.name)))
		to.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: p.destinations()}
		routes = append(routes, to)
	}
	return append(routes, rest...)
}

// withPoolRelayRoutes is withPoolRoutes for the relay, which reads the pool from a header.
func (r *renderer) withPoolRelayRoutes(route *routev3.Route, rest []*routev3.Route) []*routev3.Route {
	var routes []*routev3.Route
	for _, p := range r.addresses.pools {
		to := proto.CloneOf(route)
		to.Match.Headers = append(to.Match.Headers, &routev3.HeaderMatcher{
			Name: PoolHeader,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Exact{Exact: p.name},
			}},
		})
		to.RequestHeadersToRemove = append(to.RequestHeadersToRemove, PoolHeader)
		to.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: p.laneCluster()}
		routes = append(routes, to)
	}
	return append(routes, rest...)
}
