// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"cmp"
	"fmt"
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// routes checks the routes of m on which at least one of the ext_proc filters runs.
func (c *checker) routes(path string, m *hcmv3.HttpConnectionManager, filters []string) {
	config := m.GetRouteConfig()
	if config == nil {
		c.note(path+": route_config", "is not in this file: a route on which requests are held needs timeout 0s")
		return
	}
	for _, host := range config.GetVirtualHosts() {
		for i, r := range host.GetRoutes() {
			if r.GetRoute() == nil || c.disabled(r, host, filters) {
				continue
			}
			name := r.GetName()
			if name == "" {
				name = strconv.Itoa(i)
			}
			at := fmt.Sprintf("%s: virtual host %s: route %s", path, host.GetName(), name)
			c.route(at, r.GetRoute())
			c.destination(at, r.GetRoute())
			c.retries(at, cmp.Or(r.GetRoute().GetRetryPolicy(), host.GetRetryPolicy()))
		}
	}
}

func (c *checker) route(path string, r *routev3.RouteAction) {
	switch timeout := r.GetTimeout(); {
	case timeout == nil:
		c.bad(path+": timeout", "is missing, which means 15s, must be 0s: it cuts answers that take longer")
	case timeout.AsDuration() != 0:
		c.bad(path+": timeout", "is %v, must be 0s: it cuts answers that take longer", timeout.AsDuration())
	}
	c.idle(path+": idle_timeout", r.GetIdleTimeout(), 0)
	c.total(path+": max_stream_duration", r.GetMaxStreamDuration().GetMaxStreamDuration())
}

// disabled reports whether all of the filters are disabled for the route, by the route
// itself or by its virtual host.
func (c *checker) disabled(r *routev3.Route, host *routev3.VirtualHost, filters []string) bool {
	for _, name := range filters {
		config := r.GetTypedPerFilterConfig()[name]
		if config == nil {
			config = host.GetTypedPerFilterConfig()[name]
		}
		if !switchedOff(config) {
			return false
		}
	}
	return true
}

func switchedOff(config *anypb.Any) bool {
	perRoute := &extprocv3.ExtProcPerRoute{}
	if config.MessageIs(perRoute) && config.UnmarshalTo(perRoute) == nil {
		return perRoute.GetDisabled()
	}
	filter := &routev3.FilterConfig{}
	if config.MessageIs(filter) && config.UnmarshalTo(filter) == nil {
		return filter.GetDisabled()
	}
	return false
}
