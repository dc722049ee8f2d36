// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"os"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// SystemCA in Config.BackendCAs stands for the system's CA certificates.
const SystemCA = "system"

// systemBundles are the paths of the CA bundle in common distributions.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// systemBundle returns the CA bundle of this machine.
func systemBundle() string {
	for _, path := range systemBundles {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return systemBundles[0]
}

// caFile returns the path of CAs, which may be SystemCA.
func caFile(ca string) string {
	if ca == SystemCA {
		return systemBundle()
	}
	return ca
}

func checkCA(ca string) error {
	if ca == SystemCA {
		return nil
	}
	if ca == "" {
		return errors.New("must not be empty")
	}
	return checkPath(ca)
}

// tlsClusters returns the destination and relay clusters of https backends, one set for
// each CA because a cluster has only one transport socket.
func (r *renderer) tlsClusters() []*clusterv3.Cluster {
	var all []*clusterv3.Cluster
	for i, ca := range r.config.BackendCAs {
		all = append(all,
			r.destinations(tlsName(destinationsCluster, i), tlsName(firstCluster, i), sniOptions()),
			r.withTLS(r.originalDestination(tlsName(firstCluster, i)), ca),
			r.withTLS(r.originalDestination(tlsName(relayCluster, i)), ca),
		)
	}
	return all
}

func tlsName(cluster string, i int) string { return cluster + "_tls_" + strconv.Itoa(i) }

// withTLS makes a cluster use TLS and require certificates for the requested name.
func (r *renderer) withTLS(c *clusterv3.Cluster, ca string) *clusterv3.Cluster {
	c.TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: r.pack(&tlsv3.UpstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{
				ValidationContext: &tlsv3.CertificateValidationContext{
					TrustedCa: inFile(caFile(ca)),
				},
			}},
		})},
	}
	c.TypedExtensionProtocolOptions = r.protocol(&upstreamv3.HttpProtocolOptions{
		CommonHttpProtocolOptions:   &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(engineIdle)},
		UpstreamHttpProtocolOptions: sniOptions(),
		UpstreamProtocolOptions:     http1(),
		HttpFilters:                 r.removeSNIHeader(),
	})
	return c
}

// sniOptions sets the server name, and the name that the certificate must have, to
// SNIHeader or else the host. A composite cluster needs these options like its members:
// the router reads them there.
func sniOptions() *corev3.UpstreamHttpProtocolOptions {
	return &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: true, OverrideAutoSniHeader: SNIHeader}
}

// removeSNIHeader returns filters that remove SNIHeader before the request reaches the
// engine. The router has read it before these filters run. The filters of the composite
// cluster do the same.
func (r *renderer) removeSNIHeader() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		r.filter("envoy.filters.http.header_mutation", &headersv3.HeaderMutation{
			Mutations: &headersv3.Mutations{RequestMutations: []*mutationv3.HeaderMutation{removeHeader(SNIHeader)}},
		}),
		r.filter("envoy.filters.http.upstream_codec", &codecv3.UpstreamCodec{}),
	}
}

// withTLSRoutes returns route for requests without TLS, and a copy for each CA that
// matches requests whose metadata names it. A CA that this bootstrap does not have is
// refused: the request would otherwise be sent unencrypted.
func (r *renderer) withTLSRoutes(route *routev3.Route) []*routev3.Route {
	plain := proto.CloneOf(route)
	inClear := metadataIs(TLSKey, present())
	inClear.Invert = true
	plain.Match.DynamicMetadata = append(plain.Match.DynamicMetadata, inClear)
	routes := []*routev3.Route{plain}
	for i, ca := range r.config.BackendCAs {
		over := proto.CloneOf(route)
		over.Match.DynamicMetadata = append(over.Match.DynamicMetadata, metadataIs(TLSKey, exactly(ca)))
		over.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: tlsName(destinationsCluster, i)}
		routes = append(routes, over)
	}
	return append(routes, &routev3.Route{Match: route.GetMatch(), Action: unavailable()})
}

// withRelayTLSRoutes is withTLSRoutes for the relay, which reads the CA from a header.
func (r *renderer) withRelayTLSRoutes(route *routev3.Route) []*routev3.Route {
	plain := proto.CloneOf(route)
	plain.Match.Headers = append(plain.Match.Headers, &routev3.HeaderMatcher{
		Name: TLSHeader, InvertMatch: true, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	})
	routes := []*routev3.Route{plain}
	for i, ca := range r.config.BackendCAs {
		over := proto.CloneOf(route)
		over.Match.Headers = append(over.Match.Headers, &routev3.HeaderMatcher{
			Name: TLSHeader,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Exact{Exact: ca},
			}},
		})
		over.RequestHeadersToRemove = append(over.RequestHeadersToRemove, TLSHeader)
		over.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: tlsName(relayCluster, i)}
		routes = append(routes, over)
	}
	return append(routes, &routev3.Route{Match: route.GetMatch(), Action: unavailable()})
}

// unavailable returns the action of a route that answers with 503.
func unavailable() *routev3.Route_DirectResponse {
	return &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 503}}
}

// metadataIs matches requests by a key of Namespace.
func metadataIs(key string, value *matcherv3.ValueMatcher) *matcherv3.MetadataMatcher {
	return &matcherv3.MetadataMatcher{
		Filter: Namespace,
		Path: []*matcherv3.MetadataMatcher_PathSegment{{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key},
		}},
		Value: value,
	}
}

func present() *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
}

func exactly(s string) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}},
	}}
}
