// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const dumpPath = "config dump"

const (
	// MaxDumpBytes limits the size of a config dump that is read.
	MaxDumpBytes = 256 << 20
	dumpTimeout  = 30 * time.Second
)

// ReadDump gets the config dump of a running Envoy from its admin interface, http://host:port
// or unix:///path. A path and a query of the URL are used as they are.
func ReadDump(ctx context.Context, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, dumpTimeout)
	defer cancel()
	at := "/config_dump?include_eds"
	if !strings.HasPrefix(from, "unix://") {
		u, err := url.Parse(from)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("asking Envoy for its config dump: must be http://host:port or unix:///path, is %q", from)
		}
		if strings.Trim(u.Path, "/") != "" {
			at = u.RequestURI()
		}
		from = u.Scheme + "://" + u.Host
	}
	text, err := NewAdmin(from).answer(ctx, at, MaxDumpBytes)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for its config dump: %w: is that the address of its admin interface, which its bootstrap has in admin.address?", err)
	}
	return text, nil
}

// readDump reads the parts of a config dump.
func readDump(configs []any) (*Setup, error) {
	d := &dump{Setup: newSetup()}
	d.running = true
	for _, config := range configs {
		part := &anypb.Any{}
		notes, err := unmarshal(wrapUnknown(config), part, dumpPath)
		if err != nil {
			return nil, err
		}
		d.found = append(d.found, notes...)
		if err := d.part(part); err != nil {
			return nil, err
		}
	}
	if !d.complete {
		return nil, errors.New("reading the config dump: it has no bootstrap, so it is not all of it: take the answer to /config_dump without resource, mask and name_regex")
	}
	return d.Setup, nil
}

// dump is a config dump that is being read.
type dump struct {
	*Setup

	complete bool
}

func (d *dump) part(part *anypb.Any) error {
	message, err := part.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("reading the config dump: %s", printable(err.Error()))
	}
	switch m := message.(type) {
	case *adminv3.BootstrapConfigDump:
		d.complete = true
		d.setVersion(m.GetBootstrap().GetNode())
	case *adminv3.ListenersConfigDump:
		d.readListeners(m)
	case *adminv3.ClustersConfigDump:
		d.readClusters(m)
	case *adminv3.RoutesConfigDump:
		d.readRoutes(m)
	case *adminv3.EcdsConfigDump:
		d.readExtensions(m)
	case *adminv3.EndpointsConfigDump:
		d.readEndpoints(m)
	case *adminv3.ScopedRoutesConfigDump, *adminv3.SecretsConfigDump:
	default:
		d.note(dumpPath, "its part %s is not known and is not checked", kindOf(part))
	}
	return nil
}

func (d *dump) note(path, format string, args ...any) {
	d.found = append(d.found, finding(Note, path, format, args...))
}

// read unmarshals a resource of the dump. One that is missing or of another type is left
// out, with a note.
func (d *dump) read(from *anypb.Any, into proto.Message, what string) bool {
	if from == nil || !from.MessageIs(into) || from.UnmarshalTo(into) != nil {
		d.note(dumpPath, "%s has the type %q and is not checked", what, kindOf(from))
		return false
	}
	return true
}

// rejected reports an update that Envoy did not take.
func (d *dump) rejected(what, name string, state *adminv3.UpdateFailureState) {
	if state != nil {
		d.found = append(d.found, finding(Warning, strings.TrimSpace(what+" "+name), "its last update was rejected, so that Envoy has an older one: %s", state.GetDetails()))
	}
}

func (d *dump) readListeners(m *adminv3.ListenersConfigDump) {
	for _, s := range m.GetStaticListeners() {
		d.addListener(s.GetListener())
	}
	for _, s := range m.GetDynamicListeners() {
		d.rejected("listener", s.GetName(), s.GetErrorState())
		state := s.GetActiveState()
		if state == nil {
			state = s.GetWarmingState()
		}
		if state != nil {
			d.addListener(state.GetListener())
		}
	}
}

func (d *dump) addListener(a *anypb.Any) {
	l := &listenerv3.Listener{}
	if d.read(a, l, "a listener") {
		d.listeners = append(d.listeners, l)
	}
}

func (d *dump) readClusters(m *adminv3.ClustersConfigDump) {
	for _, s := range m.GetStaticClusters() {
		d.addCluster(s.GetCluster())
	}
	// An active cluster replaces the warming one of the same name.
	for _, s := range append(m.GetDynamicWarmingClusters(), m.GetDynamicActiveClusters()...) {
		if s.GetCluster() != nil {
			d.addCluster(s.GetCluster())
		}
		d.rejected("cluster", "", s.GetErrorState())
	}
}

func (d *dump) addCluster(a *anypb.Any) {
	c := &clusterv3.Cluster{}
	if d.read(a, c, "a cluster") {
		d.clusters[c.GetName()] = c
	}
}

func (d *dump) readRoutes(m *adminv3.RoutesConfigDump) {
	for _, s := range m.GetStaticRouteConfigs() {
		d.addRoutes(s.GetRouteConfig())
	}
	for _, s := range m.GetDynamicRouteConfigs() {
		if s.GetRouteConfig() != nil {
			d.addRoutes(s.GetRouteConfig())
		}
		d.rejected("route configuration", "", s.GetErrorState())
	}
}

func (d *dump) addRoutes(a *anypb.Any) {
	r := &routev3.RouteConfiguration{}
	if d.read(a, r, "a route configuration") {
		d.routeConfigs[r.GetName()] = r
	}
}

func (d *dump) readExtensions(m *adminv3.EcdsConfigDump) {
	for _, s := range m.GetEcdsFilters() {
		e := &corev3.TypedExtensionConfig{}
		if s.GetEcdsFilter() != nil && d.read(s.GetEcdsFilter(), e, "an extension") {
			d.extensions[e.GetName()] = e.GetTypedConfig()
		}
		d.rejected("extension", e.GetName(), s.GetErrorState())
	}
}

func (d *dump) readEndpoints(m *adminv3.EndpointsConfigDump) {
	all := make([]*anypb.Any, 0, len(m.GetStaticEndpointConfigs())+len(m.GetDynamicEndpointConfigs()))
	for _, s := range m.GetStaticEndpointConfigs() {
		all = append(all, s.GetEndpointConfig())
	}
	for _, s := range m.GetDynamicEndpointConfigs() {
		all = append(all, s.GetEndpointConfig())
	}
	for _, a := range all {
		e := &endpointv3.ClusterLoadAssignment{}
		if !d.read(a, e, "an endpoint configuration") {
			continue
		}
		hosts := 0
		for _, locality := range e.GetEndpoints() {
			hosts += len(locality.GetLbEndpoints())
		}
		d.hosts[e.GetClusterName()] = hosts
	}
}
