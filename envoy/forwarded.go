// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// clientAddress sets where Envoy takes the client's address from.
func (r *renderer) clientAddress(m *hcmv3.HttpConnectionManager) {
	switch {
	case r.config.TrustedHops > 0:
		// Without use_remote_address the peer counts as the first trusted proxy, and
		// the last address in x-forwarded-for is that proxy's own peer.
		m.XffNumTrustedHops = uint32(r.config.TrustedHops - 1) //nolint:gosec // parse bounds it.
	case r.config.ProxyProtocol:
		// Use the address of the PROXY header and ignore the client's x-forwarded-for.
		// The other effects of use_remote_address are switched off.
		m.UseRemoteAddress = wrapperspb.Bool(true)
		m.SkipXffAppend = true
		m.PreserveExternalRequestId = true
	}
}

// removeTrustHeaders removes the headers that use_remote_address adds, so that engines
// do not see them.
func (r *renderer) removeTrustHeaders(host *routev3.VirtualHost) {
	if r.config.ProxyProtocol {
		host.RequestHeadersToRemove = append(host.RequestHeadersToRemove, "x-envoy-external-address", "x-envoy-internal")
	}
}

// proxyProtocol returns a filter that requires and reads a PROXY header of version 1 or
// 2.
func (r *renderer) proxyProtocol() *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name:       "envoy.filters.listener.proxy_protocol",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: r.pack(&proxyprotocolv3.ProxyProtocol{})},
	}
}
