// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// corsHeaders are what an engine may say of web pages, which is the router's to say.
var corsHeaders = []string{
	"access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods",
	"access-control-allow-origin", "access-control-allow-private-network", "access-control-expose-headers",
	"access-control-max-age",
}

// edgeRoutes are destinationRoutes, and before each one for requests whose metadata
// says that engines' CORS headers are replaced. Nothing else removes a header of an
// engine's answer on a condition; Holdgate clears the route cache for such requests.
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

// corsAnswer are the headers with which a page may read an answer; what the metadata
// lacks adds none.
func corsAnswer() []*corev3.HeaderValueOption {
	return []*corev3.HeaderValueOption{
		header("access-control-allow-origin", "%DYNAMIC_METADATA(holdgate:cors_origin)%", overwriteOrAdd),
		header("access-control-expose-headers", "%DYNAMIC_METADATA(holdgate:cors_expose)%", overwriteOrAdd),
	}
}
