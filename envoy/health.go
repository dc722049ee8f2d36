// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// The paths at the edge for load balancers. They need no key.
const (
	// HealthPath is answered by Envoy alone.
	HealthPath = "/healthz"
	// ReadyPath is answered by Holdgate through Envoy.
	ReadyPath = "/readyz"
)

// healthRoute answers HealthPath independently of Holdgate's state.
func (r *renderer) healthRoute() *routev3.Route {
	return &routev3.Route{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: HealthPath}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: 200,
			Body:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: `{"status":"ok"}`}},
		}},
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{header("content-type", "application/json", overwriteOrAdd)},
		TypedPerFilterConfig: map[string]*anypb.Any{
			extProcFilter: r.pack(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Disabled{Disabled: true}}),
		},
	}
}

// notHealthCheck matches every request except those for HealthPath, which are not
// logged to Holdgate.
func notHealthCheck() *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_HeaderFilter{
		HeaderFilter: &accesslogv3.HeaderFilter{Header: &routev3.HeaderMatcher{
			Name:        ":path",
			InvertMatch: true,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
				StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: HealthPath}},
			},
		}},
	}}
}
