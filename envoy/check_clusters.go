// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	overridehostv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type (
	uint32Value = wrapperspb.UInt32Value
	uint64Value = wrapperspb.UInt64Value
)

// holdgateCluster checks the cluster of Holdgate. Its path ends with a space.
func (c *checker) holdgateCluster(path string, cluster *clusterv3.Cluster) {
	if limit := limits(cluster).requests; limit <= requestsDefault {
		c.bad(path+"circuit_breakers.max_requests", "is %d, must be larger: each held request is one open stream, and request %d fails, warm or held", limit, uint64(limit)+1)
	}
	if !speaksHTTP2(cluster) {
		c.bad(path+"typed_extension_protocol_options", "does not say that the cluster has HTTP/2, which gRPC needs")
	}
	if cluster.GetOutlierDetection() != nil {
		c.warn(path+"outlier_detection", "is set, should be missing: a holdgate that could not be reached may be left out for base_ejection_time, 30s by default, although it is back")
	}
	c.limit(path+"common_http_protocol_options.max_stream_duration", maxStream(cluster), "cuts holds, each of which is one stream")
	if n, known := c.hosts[cluster.GetName()]; known && n == 0 {
		c.warn(path+"endpoints", "there are none now: requests do not reach holdgate")
	}
}

// engines checks a cluster of engines to which the gateway routes.
func (c *checker) engines(path string, cluster *clusterv3.Cluster) {
	l := limits(cluster)
	switch lowest := min(l.requests, l.connections, l.pending); {
	case lowest < requestsDefault:
		c.warn(path+"circuit_breakers", "allow %d requests at once: when more are released after a hold, the others end with 503", lowest)
	case lowest == requestsDefault:
		c.note(path+"circuit_breakers", "allow %d requests at once: when more are released after a hold, the others end with 503", lowest)
	}
	if l.retries <= retriesDefault {
		c.note(path+"circuit_breakers.max_retries", "is %d: when more requests than that are released while the engine still refuses connections, the others end with 503", l.retries)
	}
	c.limit(path+"common_http_protocol_options.max_stream_duration", maxStream(cluster), endsAnswers)
}

const retriesDefault = 3

// breakers are the limits of a cluster at once.
type breakers struct{ requests, connections, pending, retries uint32 }

// limits returns the limits for requests of default priority.
func limits(cluster *clusterv3.Cluster) breakers {
	b := breakers{requestsDefault, requestsDefault, requestsDefault, retriesDefault}
	for _, t := range cluster.GetCircuitBreakers().GetThresholds() {
		if t.GetPriority() != corev3.RoutingPriority_DEFAULT {
			continue
		}
		for limit, is := range map[*uint32]*uint32Value{
			&b.requests: t.GetMaxRequests(), &b.connections: t.GetMaxConnections(), &b.pending: t.GetMaxPendingRequests(), &b.retries: t.GetMaxRetries(),
		} {
			if is != nil {
				*limit = is.GetValue()
			}
		}
	}
	return b
}

// protocolOf returns the typed options of a cluster, nil if it has none.
func protocolOf(cluster *clusterv3.Cluster) *upstreamv3.HttpProtocolOptions {
	o := &upstreamv3.HttpProtocolOptions{}
	if a := cluster.GetTypedExtensionProtocolOptions()[protocolOptions]; a == nil || a.UnmarshalTo(o) != nil {
		return nil
	}
	return o
}

func speaksHTTP2(cluster *clusterv3.Cluster) bool {
	o := protocolOf(cluster)
	return o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil || o.GetAutoConfig() != nil ||
		cluster.GetHttp2ProtocolOptions() != nil //nolint:staticcheck // gateways still write it.
}

// maxStream returns the longest time of a request to a cluster; 0 for no limit.
func maxStream(cluster *clusterv3.Cluster) time.Duration {
	return protocolOf(cluster).GetCommonHttpProtocolOptions().GetMaxStreamDuration().AsDuration()
}

// readsEndpoint reports whether a cluster connects to the endpoint that a picker names.
func readsEndpoint(cluster *clusterv3.Cluster) bool {
	original := cluster.GetOriginalDstLbConfig()
	if cluster.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		return original.GetUseHttpHeader() && isPickerKey(original.GetHttpHeaderName()) || isPickerMetadata(original.GetMetadataKey())
	}
	for _, policy := range cluster.GetLoadBalancingPolicy().GetPolicies() {
		o := &overridehostv3.OverrideHost{}
		if config := policy.GetTypedExtensionConfig().GetTypedConfig(); !config.MessageIs(o) || config.UnmarshalTo(o) != nil {
			continue
		}
		for _, source := range o.GetOverrideHostSources() {
			if isPickerKey(source.GetHeader()) || isPickerMetadata(source.GetMetadata()) {
				return true
			}
		}
	}
	return false
}

func isPickerMetadata(key *metadatav3.MetadataKey) bool {
	return key.GetKey() == PickedNamespace && len(key.GetPath()) == 1 && isPickerKey(key.GetPath()[0].GetKey())
}
