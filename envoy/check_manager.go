// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// manager is an HTTP connection manager of a listener.
type manager struct {
	*hcmv3.HttpConnectionManager

	path     string // of the listener
	listener *listenerv3.Listener
	filters  []*httpFilter
	ours     []*httpFilter // those of filters that call Holdgate
	// routeConfig is nil if the setup does not have it.
	routeConfig *routev3.RouteConfiguration
}

// httpFilter is an HTTP filter.
type httpFilter struct {
	name string
	// kind is the full name of its message.
	kind     string
	config   *anypb.Any
	disabled bool
	// proc is its configuration if it is an ext_proc filter, else nil.
	proc *extprocv3.ExternalProcessor
}

// managers returns the HTTP connection managers of all listeners.
func (c *checker) managers() []*manager {
	var all []*manager
	for _, l := range c.listeners {
		path := "listener " + l.GetName()
		for _, m := range connectionManagers(l) {
			if m.err != nil {
				c.bad(path, "cannot be read: %v", m.err)
				continue
			}
			next := &manager{HttpConnectionManager: m.manager, path: path, listener: l, routeConfig: m.manager.GetRouteConfig()}
			if name := m.manager.GetRds().GetRouteConfigName(); m.manager.GetRds() != nil {
				next.routeConfig = c.routeConfigs[name]
			}
			for _, f := range m.manager.GetHttpFilters() {
				next.filters = append(next.filters, c.filter(path, f))
			}
			all = append(all, next)
		}
	}
	return all
}

// connectionManager is an HTTP connection manager, or why it could not be read.
type connectionManager struct {
	manager *hcmv3.HttpConnectionManager
	err     error
}

func connectionManagers(l *listenerv3.Listener) []connectionManager {
	chains := l.GetFilterChains()
	if chain := l.GetDefaultFilterChain(); chain != nil {
		chains = append(slices.Clone(chains), chain)
	}
	configs := []*anypb.Any{l.GetApiListener().GetApiListener()}
	for _, chain := range chains {
		for _, f := range chain.GetFilters() {
			configs = append(configs, f.GetTypedConfig())
		}
	}
	var all []connectionManager
	for _, config := range configs {
		m := &hcmv3.HttpConnectionManager{}
		if config.MessageIs(m) {
			all = append(all, connectionManager{m, config.UnmarshalTo(m)})
		}
	}
	return all
}

// filter returns a filter of a manager, or of ECDS.
func (c *checker) filter(path string, f *hcmv3.HttpFilter) *httpFilter {
	config := f.GetTypedConfig()
	if f.GetConfigDiscovery() != nil {
		config = c.extensions[f.GetName()]
		if config == nil {
			config = f.GetConfigDiscovery().GetDefaultConfig()
		}
		if config == nil {
			c.note(path+": filter "+f.GetName(), "comes by ECDS and is not checked")
		}
	}
	next := &httpFilter{name: f.GetName(), kind: kindOf(config), config: config, disabled: f.GetDisabled()}
	p := &extprocv3.ExternalProcessor{}
	if !config.MessageIs(p) {
		return next
	}
	if err := config.UnmarshalTo(p); err != nil {
		c.bad(path+": filter "+f.GetName(), "cannot be read: %v", err)
		return next
	}
	next.proc = p
	return next
}

// choose finds the filters that call Holdgate.
func (c *checker) choose(managers []*manager) {
	servers := map[string]bool{}
	found, procs := false, 0
	for _, m := range managers {
		for _, f := range m.filters {
			if f.proc == nil {
				continue
			}
			procs++
			servers[serverOf(f.proc)] = true
			if c.isOurs(m, f) {
				m.ours, found = append(m.ours, f), true
			}
		}
	}
	switch {
	case found:
	case procs == 0:
		c.bad("listeners", "have no ext_proc filter: nothing would be held")
	case c.Filter != "":
		c.bad("listeners", "have no ext_proc filter with the name %s: nothing would be held", c.Filter)
	case len(servers) > 1:
		c.bad("listeners", "have several ext_proc filters, of which none seems to be that of holdgate: name it with --filter")
	default:
		c.takeAll(managers)
	}
}

// takeAll takes all ext_proc filters for Holdgate's: they call the same server.
func (c *checker) takeAll(managers []*manager) {
	for _, m := range managers {
		for _, f := range m.filters {
			if f.proc != nil {
				m.ours = append(m.ours, f)
			}
		}
	}
}

// isOurs reports whether a filter calls Holdgate, on all routes or on some.
func (c *checker) isOurs(m *manager, f *httpFilter) bool {
	if c.Filter != "" {
		return f.name == c.Filter
	}
	if seemsOurs(f.name, f.proc) {
		return true
	}
	for _, host := range m.routeConfig.GetVirtualHosts() {
		for _, r := range host.GetRoutes() {
			if p := onRoute(f, perRoute(f.name, r, host, m.routeConfig)); p != nil && seemsOurs(f.name, p) {
				return true
			}
		}
	}
	return false
}

func seemsOurs(name string, p *extprocv3.ExternalProcessor) bool {
	return lane(p) != "" || slices.Contains(p.GetMetadataOptions().GetReceivingNamespaces().GetUntyped(), Namespace) ||
		strings.Contains(strings.ToLower(name+" "+serverOf(p)), "holdgate")
}

// serverOf returns the cluster, or else the address, of a filter's server.
func serverOf(p *extprocv3.ExternalProcessor) string {
	if name := p.GetGrpcService().GetEnvoyGrpc().GetClusterName(); name != "" {
		return name
	}
	return p.GetGrpcService().GetGoogleGrpc().GetTargetUri()
}

// perRoute returns the settings of a filter for a route, nil for none.
func perRoute(name string, r *routev3.Route, host *routev3.VirtualHost, config *routev3.RouteConfiguration) *anypb.Any {
	for _, settings := range []map[string]*anypb.Any{r.GetTypedPerFilterConfig(), host.GetTypedPerFilterConfig(), config.GetTypedPerFilterConfig()} {
		if a := settings[name]; a != nil {
			return a
		}
	}
	return nil
}

// onRoute returns the configuration of an ext_proc filter on a route with the given
// settings: f.proc itself, a changed copy, or nil where the filter is off.
func onRoute(f *httpFilter, settings *anypb.Any) *extprocv3.ExternalProcessor {
	config := &routev3.FilterConfig{}
	if settings.MessageIs(config) && settings.UnmarshalTo(config) == nil {
		if config.GetDisabled() {
			return nil
		}
		settings = config.GetConfig()
		return changed(f.proc, settings)
	}
	if settings == nil && f.disabled {
		return nil
	}
	return changed(f.proc, settings)
}

func changed(p *extprocv3.ExternalProcessor, settings *anypb.Any) *extprocv3.ExternalProcessor {
	config := &extprocv3.ExtProcPerRoute{}
	if !settings.MessageIs(config) || settings.UnmarshalTo(config) != nil {
		return p
	}
	if config.GetDisabled() {
		return nil
	}
	o := config.GetOverrides()
	if o == nil {
		return p
	}
	p, _ = proto.Clone(p).(*extprocv3.ExternalProcessor)
	if o.GetProcessingMode() != nil {
		p.ProcessingMode = o.GetProcessingMode()
	}
	if o.GetGrpcService() != nil {
		p.GrpcService = o.GetGrpcService()
	}
	if o.GetMetadataOptions() != nil {
		p.MetadataOptions = o.GetMetadataOptions()
	}
	if o.GetFailureModeAllow() != nil {
		p.FailureModeAllow = o.GetFailureModeAllow().GetValue()
	}
	return p
}

// usesBase reports whether a filter has its own configuration on some route. If no
// route uses it, the configuration is that of requests without one.
func (m *manager) usesBase(f *httpFilter) bool {
	changed := false
	for _, host := range m.routeConfig.GetVirtualHosts() {
		for _, r := range host.GetRoutes() {
			p := onRoute(f, perRoute(f.name, r, host, m.routeConfig))
			if p == f.proc {
				return true
			}
			changed = changed || p != nil
		}
	}
	return !changed && (!f.disabled || m.routeConfig == nil)
}

// manager checks a manager if it has filters of ours, and reports whether it has.
func (c *checker) manager(m *manager) bool {
	if len(m.ours) == 0 {
		return false
	}
	for _, f := range m.ours {
		if m.usesBase(f) {
			c.extProc(m.path+": filter "+f.name, f.proc)
		}
		c.accessLog(m.path, m, f.proc)
	}
	c.neighbors(m)
	c.ownSettings(m)
	c.routes(m)
	return true
}
