// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	tometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// answerConditions are the conditions of retry_on that an answer of the engine itself
// can meet.
var answerConditions = []string{"5xx", "gateway-error", "retriable-4xx", "retriable-status-codes", retryOnHeaders, "envoy-ratelimited"}

// retries checks that a request is retried when its engine gave no answer, and only
// then.
func (c *checker) retries(path string, p *routev3.RetryPolicy) {
	path += ": retry_policy"
	conditions := retryConditions
	if c.Destination != toReplica {
		conditions = routeRetryConditions
	}
	if p == nil {
		c.add(c.ifReplica(), path, "is missing, must have retry_on %s: a request whose engine refuses the connection or dies before its answer ends with 503 in place of another try", conditions)
		return
	}
	on := strings.Split(strings.ReplaceAll(p.GetRetryOn(), " ", ""), ",")
	for _, condition := range answerConditions {
		if slices.Contains(on, condition) && (condition != retryOnHeaders || !retriesOnlyNotTaken(p)) {
			c.add(c.ifReplica(), path+".retry_on", "has %s, must be %s: an engine's own error is taken for a failed try, and the request runs twice", condition, conditions)
		}
	}
	if !slices.Contains(on, "connect-failure") && !slices.Contains(on, "5xx") {
		c.add(c.ifReplica(), path+".retry_on", "lacks connect-failure: a request whose engine refuses the connection ends with 503 in place of another try")
	}
	if c.Destination == toReplica && !slices.Contains(on, "reset") && !slices.Contains(on, "5xx") {
		c.bad(path+".retry_on", "lacks reset: a request whose engine dies before its answer ends with 503 in place of another try")
	}
	c.limit(path+".per_try_timeout", p.GetPerTryTimeout().AsDuration(), "ends answers that take longer to begin or to arrive, and the engine gets the request again")
	c.limit(path+".per_try_idle_timeout", p.GetPerTryIdleTimeout().AsDuration(), "cuts answers with longer pauses")
}

// routeRetryConditions is retry_on for a gateway that routes requests itself.
const routeRetryConditions = "connect-failure,refused-stream,reset-before-request"

// retriesOnlyNotTaken reports whether response headers cause a retry only when the
// destination did not take the request.
func retriesOnlyNotTaken(p *routev3.RetryPolicy) bool {
	return !slices.ContainsFunc(p.GetRetriableHeaders(), func(m *routev3.HeaderMatcher) bool { return m.GetName() != notTakenHeader })
}

// destination checks that a route connects to the destination that Holdgate names.
func (c *checker) destination(path string, r *routev3.RouteAction) {
	name := r.GetCluster()
	cluster := c.cluster(name)
	switch {
	case name == "":
		c.bad(path+": cluster", "is not one cluster by its name: requests do not go to the destination that holdgate names")
	case cluster == nil && !c.running:
		c.note(path+": cluster", "%s is not a static one: it must be the composite cluster of docs/envoy.md, or requests do not go to the destination that holdgate names", name)
	case cluster == nil || !c.usesDestinationMetadata(cluster):
		c.bad(path+": cluster", "%s does not read the destination from the metadata %s, key %s: requests go to the cluster's own hosts, whatever holdgate decides, and its slots are counted for other engines", name, Namespace, FirstKey)
	}
}

// usesDestinationMetadata reports whether a cluster, or the first member of a composite
// cluster, connects to the address in the metadata.
func (c *checker) usesDestinationMetadata(cluster *clusterv3.Cluster) bool {
	composite := &compositev3.ClusterConfig{}
	if config := cluster.GetClusterType().GetTypedConfig(); config.MessageIs(composite) {
		if config.UnmarshalTo(composite) != nil || len(composite.GetClusters()) == 0 {
			return false
		}
		if cluster = c.cluster(composite.GetClusters()[0].GetName()); cluster == nil {
			return false
		}
	}
	if protocol.PoolOf(pipeOf(cluster)) != "" {
		return true // the route is for the requests of this pool alone
	}
	key := cluster.GetOriginalDstLbConfig().GetMetadataKey()
	return cluster.GetType() == clusterv3.Cluster_ORIGINAL_DST && key.GetKey() == Namespace &&
		len(key.GetPath()) == 1 && key.GetPath()[0].GetKey() == FirstKey
}

// pipeOf returns the path of the unix socket of a cluster with one endpoint, "" for another
// cluster.
func pipeOf(cluster *clusterv3.Cluster) string {
	for _, group := range cluster.GetLoadAssignment().GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			return e.GetEndpoint().GetAddress().GetPipe().GetPath()
		}
	}
	return ""
}

// lanes checks that the rehold lane and the relay lane exist.
func (c *checker) lanes() {
	var rehold, relay bool
	for _, l := range c.listeners {
		for _, m := range connectionManagers(l) {
			rehold = rehold || isRehold(m.manager)
			relay = relay || isRelay(m.manager)
		}
	}
	if !rehold {
		c.bad("listeners", "lack the rehold lane, which has an ext_proc filter with %s: %s in its initial_metadata: a request whose engine fails ends with 503 in place of another replica", LaneMetadata, LaneRehold)
	}
	if !relay {
		c.bad("listeners", "lack the relay lane, which takes the destination from the header %s: a request that was held with keepalives ends with 502 when its model is up", DestinationHeader)
	}
}

func isRehold(m *hcmv3.HttpConnectionManager) bool {
	for _, f := range m.GetHttpFilters() {
		p := &extprocv3.ExternalProcessor{}
		if !f.GetTypedConfig().MessageIs(p) || f.GetTypedConfig().UnmarshalTo(p) != nil {
			continue
		}
		if lane(p) == LaneRehold {
			return true
		}
	}
	return false
}

func isRelay(m *hcmv3.HttpConnectionManager) bool {
	for _, f := range m.GetHttpFilters() {
		config := &tometadatav3.Config{}
		if !f.GetTypedConfig().MessageIs(config) || f.GetTypedConfig().UnmarshalTo(config) != nil {
			continue
		}
		for _, rule := range config.GetRequestRules() {
			to := rule.GetOnHeaderPresent()
			if rule.GetHeader() == DestinationHeader && to.GetMetadataNamespace() == Namespace && to.GetKey() == FirstKey {
				return true
			}
		}
	}
	return false
}
