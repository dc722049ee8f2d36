// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	edgeListener   = "edge"
	extProcFilter  = "envoy.filters.http.ext_proc"
	routerFilter   = "envoy.filters.http.router"
	firstCluster   = "first"
	backendCluster = "backend"
)

// plain turns Holdgate's bootstrap into "Envoy alone": the edge listener with the same
// limits and routes, without external processing and access log, and with one static
// cluster that has the settings of Holdgate's destination cluster.
func plain(b *bootstrapv3.Bootstrap, backend string) error {
	var edges []*listenerv3.Listener
	for _, listener := range b.GetStaticResources().GetListeners() {
		if listener.GetName() == edgeListener {
			edges = append(edges, listener)
		}
	}
	if len(edges) != 1 {
		return fmt.Errorf("the bootstrap has %d listeners named %q, want 1", len(edges), edgeListener)
	}
	cluster, err := staticCluster(b, backend)
	if err != nil {
		return err
	}
	b.StaticResources.Listeners = edges
	b.StaticResources.Clusters = []*clusterv3.Cluster{cluster}
	return editManagers(edges[0], func(manager *hcmv3.HttpConnectionManager) error {
		manager.HttpFilters = slices.DeleteFunc(manager.GetHttpFilters(), func(filter *hcmv3.HttpFilter) bool {
			return filter.GetName() == extProcFilter
		})
		manager.LocalReplyConfig = nil // its headers come from Holdgate's metadata
		for _, host := range manager.GetRouteConfig().GetVirtualHosts() {
			toBackend(host)
		}
		return dropLogs(manager)
	})
}

// withoutAccessLog removes the access logs, to measure what they cost.
func withoutAccessLog(b *bootstrapv3.Bootstrap) error {
	for _, listener := range b.GetStaticResources().GetListeners() {
		if err := editManagers(listener, dropLogs); err != nil {
			return err
		}
	}
	return nil
}

// dropLogs removes the log of requests and the router's log of attempts.
func dropLogs(manager *hcmv3.HttpConnectionManager) error {
	manager.AccessLog = nil
	for _, filter := range manager.GetHttpFilters() {
		if filter.GetName() != routerFilter {
			continue
		}
		router := &routerv3.Router{}
		if err := filter.GetTypedConfig().UnmarshalTo(router); err != nil {
			return fmt.Errorf("reading filter %s: %w", filter.GetName(), err)
		}
		router.UpstreamLog = nil
		changed, err := anypb.New(router)
		if err != nil {
			return fmt.Errorf("writing filter %s: %w", filter.GetName(), err)
		}
		filter.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: changed}
	}
	return nil
}

// toBackend sends every route of the host to the backend. It removes the headers that
// are made from Holdgate's metadata.
func toBackend(host *routev3.VirtualHost) {
	host.RequestHeadersToAdd, host.ResponseHeadersToAdd = nil, nil
	host.Routes = slices.DeleteFunc(host.GetRoutes(), func(r *routev3.Route) bool {
		return r.GetRoute() == nil || slices.ContainsFunc(r.GetMatch().GetDynamicMetadata(), func(m *matcherv3.MetadataMatcher) bool { return !m.GetInvert() })
	})
	for _, route := range host.GetRoutes() {
		route.Match.DynamicMetadata = nil
		route.RequestHeadersToAdd, route.ResponseHeadersToAdd = nil, nil
		route.TypedPerFilterConfig = nil
		if action := route.GetRoute(); action != nil {
			action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: backendCluster}
		}
	}
}

func staticCluster(b *bootstrapv3.Bootstrap, backend string) (*clusterv3.Cluster, error) {
	address, err := netip.ParseAddrPort(backend)
	if err != nil {
		return nil, fmt.Errorf("reading the backend's address: %w", err)
	}
	for _, cluster := range b.GetStaticResources().GetClusters() {
		if cluster.GetName() != firstCluster {
			continue
		}
		static := proto.CloneOf(cluster)
		static.Name = backendCluster
		static.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		static.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		static.LbConfig = nil
		static.LoadAssignment = assignment(address)
		return static, nil
	}
	return nil, fmt.Errorf("the bootstrap has no cluster %q", firstCluster)
}

func assignment(address netip.AddrPort) *endpointv3.ClusterLoadAssignment {
	socket := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       address.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(address.Port())},
	}}}
	endpoint := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
		Endpoint: &endpointv3.Endpoint{Address: socket},
	}}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: backendCluster,
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{endpoint}}},
	}
}

// editManagers applies edit to every HTTP connection manager of the listener.
func editManagers(listener *listenerv3.Listener, edit func(*hcmv3.HttpConnectionManager) error) error {
	for _, chain := range listener.GetFilterChains() {
		for _, filter := range chain.GetFilters() {
			config := filter.GetTypedConfig()
			manager := &hcmv3.HttpConnectionManager{}
			if !config.MessageIs(manager) {
				continue
			}
			if err := config.UnmarshalTo(manager); err != nil {
				return fmt.Errorf("reading filter %s: %w", filter.GetName(), err)
			}
			if err := edit(manager); err != nil {
				return err
			}
			changed, err := anypb.New(manager)
			if err != nil {
				return fmt.Errorf("writing filter %s: %w", filter.GetName(), err)
			}
			filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: changed}
		}
	}
	return nil
}
