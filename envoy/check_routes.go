// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
)

// slowUpload is how long an upload may take without a note.
const slowUpload = time.Minute

// ownSettings checks the settings of a manager itself.
func (c *checker) ownSettings(m *manager) {
	if d := m.GetRequestTimeout().AsDuration(); d > 0 && d < slowUpload {
		c.note(m.path+": request_timeout", "is %v: it ends uploads that take longer, and no hold, which begins after the upload", d)
	}
	if m.GetAlwaysSetRequestIdInResponse() {
		c.note(m.path+": always_set_request_id_in_response", "is true, should be false: holdgate's own answers have the client's request id even if it was replaced")
	}
	local := m.GetLocalReplyConfig()
	if c.Destination != toReplica && (len(local.GetMappers()) > 0 || local.GetBodyFormat() != nil) && !sparesOurs(local.String()) {
		c.warn(m.path+": local_reply_config", "is set, and changes the errors that holdgate answers with: exclude those by a metadata_filter on %s, key %s", Namespace, ModeKey)
	}
}

// sparesOurs reports whether the text of a local reply configuration mentions the metadata of
// Holdgate's answers.
func sparesOurs(text string) bool { return strings.Contains(text, `"`+Namespace+`"`) }

// routes checks the routes of m on which at least one filter of ours runs, and the timeouts
// of m that apply where a route has none.
func (c *checker) routes(m *manager) {
	idle, total, on, routed := false, false, 0, 0
	for _, host := range m.routeConfig.GetVirtualHosts() {
		for i, r := range host.GetRoutes() {
			if r.GetRoute() == nil {
				continue
			}
			routed++
			at := fmt.Sprintf("%s: virtual host %s: route %s", m.path, host.GetName(), cmp.Or(r.GetName(), strconv.Itoa(i)))
			if !c.onRoute(at, m, host, r) {
				continue
			}
			on++
			idle = idle || r.GetRoute().GetIdleTimeout() == nil
			total = total || r.GetRoute().GetMaxStreamDuration().GetMaxStreamDuration() == nil
		}
	}
	switch {
	case m.routeConfig == nil:
		c.note(m.path+": route_config", "is not there: a route on which requests are held needs timeout 0s")
		idle, total = true, true
	case on == 0 && routed > 0:
		c.bad(m.path+": filter "+m.ours[0].name, "is not on for any route: nothing is held")
	case on < routed:
		c.note(m.path+": filter "+m.ours[0].name, "is off on %d of %d routes", routed-on, routed)
	}
	if idle {
		c.idle(m.path+": stream_idle_timeout", m.GetStreamIdleTimeout(), idleDefault)
	}
	if total {
		c.limit(m.path+": common_http_protocol_options.max_stream_duration", m.GetCommonHttpProtocolOptions().GetMaxStreamDuration().AsDuration(), endsBoth)
	}
}

const (
	endsAnswers = "cuts answers that take longer"
	endsBoth    = "cuts holds and long answers"
)

// onRoute checks a route and reports whether a filter of ours runs there.
func (c *checker) onRoute(at string, m *manager, host *routev3.VirtualHost, r *routev3.Route) (on bool) {
	c.within(at, "routes", func() { on = c.oneRoute(at, m, host, r) })
	return on
}

func (c *checker) oneRoute(at string, m *manager, host *routev3.VirtualHost, r *routev3.Route) bool {
	on := false
	for _, f := range m.ours {
		p := onRoute(f, perRoute(f.name, r, host, m.routeConfig))
		on = on || p != nil
		if p != nil && p != f.proc {
			c.overridden(at+": filter "+f.name, f.proc, p)
		}
	}
	if on {
		c.times(at, r.GetRoute())
		c.upstream(at, r.GetRoute())
		c.retries(at, cmp.Or(r.GetRoute().GetRetryPolicy(), host.GetRetryPolicy()))
		c.buffer(at, m, host, r)
	}
	return on
}

// overridden checks a filter of ours that has other settings on a route.
func (c *checker) overridden(path string, base, p *extprocv3.ExternalProcessor) {
	if serverOf(base) != serverOf(p) && seemsOurs("", base) && !seemsOurs("", p) {
		c.warn(path+": overrides.grpc_service", "is %s and not %s: requests of this route do not reach holdgate", serverOf(p), serverOf(base))
		return
	}
	c.extProc(path, p)
}

func (c *checker) times(at string, r *routev3.RouteAction) {
	if r.GetTimeout() == nil {
		c.bad(at+": timeout", "is missing, which means 15s, must be 0s: it "+endsAnswers)
	}
	c.limit(at+": timeout", r.GetTimeout().AsDuration(), endsAnswers)
	c.idle(at+": idle_timeout", r.GetIdleTimeout(), 0)
	c.limit(at+": max_stream_duration", r.GetMaxStreamDuration().GetMaxStreamDuration().AsDuration(), endsBoth)
}

// buffer checks how much of a body Envoy keeps for another attempt.
func (c *checker) buffer(at string, m *manager, host *routev3.VirtualHost, r *routev3.Route) {
	limit := uint64(bufferDefault)
	if l := m.listener.GetPerConnectionBufferLimitBytes(); l != nil {
		limit = uint64(l.GetValue())
	}
	for _, l := range []interface {
		GetRequestBodyBufferLimit() *uint64Value
		GetPerRequestBufferLimitBytes() *uint32Value
	}{host, r} {
		if v := l.GetPerRequestBufferLimitBytes(); v != nil {
			limit = uint64(v.GetValue())
		}
		if v := l.GetRequestBodyBufferLimit(); v != nil {
			limit = v.GetValue()
		}
	}
	if limit < uint64(max(c.MaxRequestBytes, 0)) {
		c.warn(at+": per_request_buffer_limit_bytes", "or what takes its place is %d, should be above the largest body of %d: larger requests are not tried again, and those with trailers that are not relayed are answered with 413", limit, c.MaxRequestBytes)
	}
}

// upstream checks the clusters of a route.
func (c *checker) upstream(at string, r *routev3.RouteAction) {
	names := []string{r.GetCluster()}
	for _, w := range r.GetWeightedClusters().GetClusters() {
		names = append(names, w.GetName())
	}
	names = slices.DeleteFunc(names, func(s string) bool { return s == "" })
	if c.Destination == toReplica {
		c.destination(at, r)
		return
	}
	for _, name := range names {
		cluster := c.cluster(name)
		if cluster == nil {
			continue
		}
		if !c.checked[name] {
			c.checked[name] = true
			c.within("cluster "+name, "clusters", func() { c.engines("cluster "+name+": ", cluster) })
		}
		if c.Destination == toEndpoint && !readsEndpoint(cluster) {
			c.bad(at+": cluster", "%s does not take its endpoint from %s: requests go to other endpoints than those that holdgate names", name, PickedHeader)
		}
	}
}
