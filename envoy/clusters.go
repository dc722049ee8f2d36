// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The clusters of a rendered bootstrap.
const (
	holdgateCluster     = "holdgate"
	logCluster          = "holdgate_log"
	destinationsCluster = "destinations"
	firstCluster        = "first"
	reholdCluster       = "rehold"
	relayCluster        = "relay"
)

const (
	// connectTimeout applies to engines. It is short because the request can go to the
	// next one.
	connectTimeout = time.Second
	// localConnectTimeout applies to Holdgate and to Envoy's own lanes. If Envoy stalls
	// for longer than that, it fails every request that waits for a connection with
	// 503; it opens one connection for each 1,024 streams and worker.
	localConnectTimeout = 10 * time.Second
	// pingEvery is how often Envoy pings a Holdgate that it calls over TCP, and pingTimeout
	// how long the answer may take.
	pingEvery   = 10 * time.Second
	pingTimeout = 10 * time.Second
	// streamWindow limits how much of an upload Envoy buffers while Holdgate does not
	// read it; with Envoy's default windows 21 to 34 MB pile up.
	streamWindow = 256 << 10
	// logBuffer is far more than the records of a busy second need: Envoy drops records
	// that do not fit.
	logBuffer = 16 << 20
	// engineIdle is below the 5 s after which uvicorn closes an idle connection,
	// possibly while Envoy sends the next request on it.
	engineIdle = 4 * time.Second
	// unbounded replaces Envoy's default limit of 1024: a held request is one open
	// stream, so the default would fail request 1025, warm or held.
	unbounded = 100000
	// An engine's answer may have 100 headers and 80 KiB of them, Envoy's defaults.
	laneResponseHeaders    = 100 + 28
	laneResponseHeadersKiB = 80 + 16
	// protocolOptions is the key under which Envoy expects HttpProtocolOptions.
	protocolOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

func (r *renderer) clusters() []*clusterv3.Cluster {
	return append([]*clusterv3.Cluster{
		r.holdgate(),
		r.log(),
		r.destinations(destinationsCluster, firstCluster, nil),
		r.originalDestination(firstCluster),
		r.lane(),
		r.originalDestination(relayCluster),
	}, append(r.tlsClusters(), r.poolClusters()...)...)
}

// holdgate returns the cluster that ext_proc connects to.
func (r *renderer) holdgate() *clusterv3.Cluster { return r.service(holdgateCluster, streamWindow) }

// log returns the cluster of the access log. It has its own connections: if it shared
// those of ext_proc, Envoy would drop log entries while uploads fill them, and each entry
// frees a slot.
func (r *renderer) log() *clusterv3.Cluster { return r.service(logCluster, logBuffer) }

// service returns a cluster of holdgate serve with the given buffer size per
// connection.
func (r *renderer) service(name string, buffer uint32) *clusterv3.Cluster {
	c := r.grpcCluster(name, r.addresses.extProc, buffer)
	c.TransportSocket = r.extProcTLS()
	return c
}

// grpcCluster returns a cluster of a gRPC server, without TLS.
func (r *renderer) grpcCluster(name string, at endpoint, buffer uint32) *clusterv3.Cluster {
	c := static(name, at)
	if at.pipe == "" && !at.isIP() {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	}
	c.CircuitBreakers = thresholds(&clusterv3.CircuitBreakers_Thresholds{
		MaxConnections:     wrapperspb.UInt32(unbounded),
		MaxPendingRequests: wrapperspb.UInt32(unbounded),
		MaxRequests:        wrapperspb.UInt32(unbounded),
	})
	c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(buffer)
	options := &corev3.Http2ProtocolOptions{
		InitialStreamWindowSize: wrapperspb.UInt32(streamWindow),
		// Clients that reset their requests cause as many resets here. Over the default
		// limit Envoy would take that for a flood and close the connection that all
		// requests share.
		MaxOutboundFrames:        wrapperspb.UInt32(unbounded),
		MaxOutboundControlFrames: wrapperspb.UInt32(unbounded),
	}
	if at.pipe == "" {
		// A machine or a network that is gone would be noticed by nothing else while
		// requests wait.
		options.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: durationpb.New(pingEvery), Timeout: durationpb.New(pingTimeout)}
	}
	c.TypedExtensionProtocolOptions = r.protocol(&upstreamv3.HttpProtocolOptions{
		UpstreamProtocolOptions: explicit(&upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: options,
			},
		}),
	})
	return c
}

// destinations returns a composite cluster. Attempt 1 goes to the address in the
// metadata, through the cluster first; attempt 2 goes to the rehold lane, where
// Holdgate picks another replica or holds the request again.
func (r *renderer) destinations(name, first string, upstream *corev3.UpstreamHttpProtocolOptions) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:           name,
		ConnectTimeout: durationpb.New(connectTimeout),
		LbPolicy:       clusterv3.Cluster_CLUSTER_PROVIDED,
		// The default allows three concurrent retries.
		CircuitBreakers: thresholds(&clusterv3.CircuitBreakers_Thresholds{MaxRetries: wrapperspb.UInt32(unbounded)}),
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.clusters.composite",
			TypedConfig: r.pack(&compositev3.ClusterConfig{
				Clusters: []*compositev3.ClusterConfig_ClusterEntry{{Name: first}, {Name: reholdCluster}},
			}),
		}},
		TypedExtensionProtocolOptions: r.protocol(&upstreamv3.HttpProtocolOptions{
			UpstreamHttpProtocolOptions: upstream,
			UpstreamProtocolOptions:     http1(),
			HttpFilters:                 r.attemptFilters(),
		}),
	}
}

// originalDestination returns a cluster that connects to the ip:port in the metadata.
func (r *renderer) originalDestination(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(connectTimeout),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		LbConfig: &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
			MetadataKey: &metadatav3.MetadataKey{
				Key: Namespace,
				Path: []*metadatav3.MetadataKey_PathSegment{{
					Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: FirstKey},
				}},
			},
		}},
		CircuitBreakers: thresholds(noLimits()),
		// Detects a machine that vanished.
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
			KeepaliveTime:     wrapperspb.UInt32(10),
			KeepaliveInterval: wrapperspb.UInt32(5),
			KeepaliveProbes:   wrapperspb.UInt32(3),
		}},
		TypedExtensionProtocolOptions: r.protocol(&upstreamv3.HttpProtocolOptions{
			CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(engineIdle)},
			UpstreamProtocolOptions:   http1(),
		}),
	}
}

// lane returns the cluster of the rehold listener. The listener adds headers to an
// engine's answer, so the limits are above those of the engines' clusters.
func (r *renderer) lane() *clusterv3.Cluster {
	c := static(reholdCluster, r.addresses.rehold)
	c.CircuitBreakers = thresholds(noLimits())
	c.TypedExtensionProtocolOptions = r.protocol(&upstreamv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			MaxHeadersCount:      wrapperspb.UInt32(laneResponseHeaders),
			MaxResponseHeadersKb: wrapperspb.UInt32(laneResponseHeadersKiB),
		},
		UpstreamProtocolOptions: http1(),
	})
	return c
}

// static returns a cluster with one endpoint; name is also the endpoint's cluster name.
func static(name string, at endpoint) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(localConnectTimeout),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at.address()}},
			}}}},
		},
	}
}

func noLimits() *clusterv3.CircuitBreakers_Thresholds {
	return &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections:     wrapperspb.UInt32(unbounded),
		MaxPendingRequests: wrapperspb.UInt32(unbounded),
		MaxRequests:        wrapperspb.UInt32(unbounded),
		MaxRetries:         wrapperspb.UInt32(unbounded),
	}
}

func thresholds(t *clusterv3.CircuitBreakers_Thresholds) *clusterv3.CircuitBreakers {
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{t}}
}

func explicit(c *upstreamv3.HttpProtocolOptions_ExplicitHttpConfig) *upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: c}
}

// http1 returns the protocol options for engines and the lane.
func http1() *upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return explicit(&upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
			HttpProtocolOptions: &corev3.Http1ProtocolOptions{},
		},
	})
}

func (r *renderer) protocol(o *upstreamv3.HttpProtocolOptions) map[string]*anypb.Any {
	return map[string]*anypb.Any{protocolOptions: r.pack(o)}
}
