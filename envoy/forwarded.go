// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// trust says where the client's address comes from.
func (r *renderer) trust(m *hcmv3.HttpConnectionManager) {
	switch {
	case r.config.TrustedHops > 0:
		// Without use_remote_address the peer is the first of the trusted proxies, and
		// the last address of x-forwarded-for is the one that it was called from.
		m.XffNumTrustedHops = uint32(r.config.TrustedHops - 1) //nolint:gosec // parse bounds it.
	case r.config.ProxyProtocol:
		// The PROXY header's address counts, and no x-forwarded-for that the client sent.
		// What comes with use_remote_address else is switched off.
		m.UseRemoteAddress = wrapperspb.Bool(true)
		m.SkipXffAppend = true
		m.PreserveExternalRequestId = true
	}
}

// hideTrust keeps from engines what use_remote_address adds.
func (r *renderer) hideTrust(host *routev3.VirtualHost) {
	if r.config.ProxyProtocol {
		host.RequestHeadersToRemove = append(host.RequestHeadersToRemove, "x-envoy-external-address", "x-envoy-internal")
	}
}

// proxyProtocol reads the PROXY header, of version 1 or 2, which must be there.
func (r *renderer) proxyProtocol() *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name:       "envoy.filters.listener.proxy_protocol",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: r.pack(&proxyprotocolv3.ProxyProtocol{})},
	}
}
