// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// corsHeaders are the headers of an engine's answer that the router replaces with its
// own.
var corsHeaders = []string{
	"access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods",
	"access-control-allow-origin", "access-control-allow-private-network", "access-control-expose-headers",
	"access-control-max-age",
}

// edgeRoutes returns the routes of destinationRoutes, each preceded by a copy for
// requests whose metadata requests that engines' CORS headers be replaced. Envoy has no
// other way to remove a response header on a condition; Holdgate clears the route cache
// for such requests.
func (r *renderer) edgeRoutes(add ...*corev3.HeaderValueOption) *hcmv3.HttpConnectionManager_RouteConfig {
	host := r.destinationRoutes(add...)
	routes := []*routev3.Route{r.healthRoute()}
	for _, route := range host.GetRoutes() {
		if route.GetRoute() != nil {
			cors := proto.CloneOf(route)
			cors.Match.DynamicMetadata = append(cors.Match.DynamicMetadata, metadataIs(CORSOriginKey, present()))
			cors.ResponseHeadersToRemove = append(cors.ResponseHeadersToRemove, corsHeaders...)
			cors.ResponseHeadersToAdd = append(corsAnswer(), header("vary", "origin", appendOrAdd))
			routes = append(routes, cors)
		}
		routes = append(routes, route)
	}
	host.Routes = routes
	return inline(host)
}

// corsAnswer returns the headers that let a web page read an answer. A header whose
// metadata is missing is not added.
func corsAnswer() []*corev3.HeaderValueOption {
	return []*corev3.HeaderValueOption{
		header("access-control-allow-origin", "%DYNAMIC_METADATA(holdgate:cors_origin)%", overwriteOrAdd),
		header("access-control-expose-headers", "%DYNAMIC_METADATA(holdgate:cors_expose)%", overwriteOrAdd),
	}
}
