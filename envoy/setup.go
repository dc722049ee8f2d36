// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"encoding/json"
	jsonv2 "encoding/json/v2"
	"errors"
	"fmt"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Setup is the configuration of an Envoy: what its bootstrap has, or what a running Envoy
// reports in its config dump.
type Setup struct {
	// running reports whether the setup is that of a running Envoy: then it is complete.
	running bool
	// major and minor are the version of a running Envoy; 0 if it is not known.
	major, minor uint32

	listeners []*listenerv3.Listener
	clusters  map[string]*clusterv3.Cluster
	// routeConfigs has the route configurations that came by RDS, by name.
	routeConfigs map[string]*routev3.RouteConfiguration
	// extensions has the filters that came by ECDS, by name.
	extensions map[string]*anypb.Any
	// hosts has the number of endpoints of each cluster that the dump lists.
	hosts map[string]int
	// found has what reading the setup has found.
	found []Finding
}

// SetupOf returns the setup that a bootstrap describes.
func SetupOf(b *bootstrapv3.Bootstrap) *Setup {
	s := newSetup()
	s.listeners = b.GetStaticResources().GetListeners()
	for _, c := range b.GetStaticResources().GetClusters() {
		s.clusters[c.GetName()] = c
	}
	return s
}

func newSetup() *Setup {
	return &Setup{
		clusters: map[string]*clusterv3.Cluster{}, routeConfigs: map[string]*routev3.RouteConfiguration{},
		extensions: map[string]*anypb.Any{}, hosts: map[string]int{},
	}
}

// Running reports whether the setup is that of a running Envoy.
func (s *Setup) Running() bool { return s.running }

// ReadSetup reads a bootstrap, YAML or JSON, or the answer of a running Envoy to
// GET /config_dump. Extensions that are not linked into this program are kept as plain
// structs.
func ReadSetup(text []byte) (*Setup, error) {
	tree, err := parseTree(text)
	if err != nil {
		return nil, err
	}
	if configs, is := tree["configs"].([]any); is {
		return readDump(configs)
	}
	switch dumps := dumpsBelow(tree, dumpDepth); len(dumps) {
	case 0:
	case 1:
		return readDump(dumps[0])
	default:
		return nil, fmt.Errorf("reading the config dump: there are %d of them: save that of one Envoy", len(dumps))
	}
	b, notes, err := parseBootstrap(tree)
	if err != nil {
		return nil, err
	}
	s := SetupOf(b)
	s.found = notes
	return s, nil
}

// dumpDepth is how deep a config dump may be: the tools of gateways print one below the
// namespace and the name of the Envoy.
const dumpDepth = 2

// dumpsBelow returns the parts of the config dumps below a tree.
func dumpsBelow(tree map[string]any, depth int) [][]any {
	var dumps [][]any
	for _, value := range tree {
		inside, _ := value.(map[string]any)
		if configs, _ := inside["configs"].([]any); len(configs) > 0 && isPart(configs[0]) {
			dumps = append(dumps, configs)
		} else if depth > 1 {
			dumps = append(dumps, dumpsBelow(inside, depth-1)...)
		}
	}
	return dumps
}

// isPart reports whether v is a part of a config dump, and not something else that a bootstrap
// may have under the same key.
func isPart(v any) bool {
	part, _ := v.(map[string]any)
	url, _ := part[typeKey].(string)
	return strings.Contains(url, "/envoy.admin.v3.")
}

// parseTree parses JSON, or else YAML, which takes far longer.
func parseTree(text []byte) (map[string]any, error) {
	var tree map[string]any
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && jsonv2.Unmarshal(text, &tree) == nil {
		return tree, nil
	}
	tree, err := parseYAML(text)
	if err != nil {
		return nil, errors.New(printable(strings.Join(strings.Fields(err.Error()), " ")))
	}
	return tree, nil
}

// unmarshal reads a message from a tree whose unknown extensions were wrapped. A field that
// this program's Envoy API does not have results in a note: Envoy may be newer.
func unmarshal(tree any, into proto.Message, path string) ([]Finding, error) {
	encoded, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("reading the %s: %s", path, printable(err.Error()))
	}
	strict := protojson.Unmarshal(encoded, into)
	if strict == nil {
		return nil, nil
	}
	proto.Reset(into)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(encoded, into); err != nil {
		return nil, fmt.Errorf("reading the %s: %s", path, printable(err.Error()))
	}
	return []Finding{{Level: Note, Path: path, Text: "has a field that this program does not know: " + printable(strict.Error())}}, nil
}

// kindOf returns the full name of the message in a, also if it was wrapped.
func kindOf(a *anypb.Any) string {
	url := a.GetTypeUrl()
	if url == structType {
		s, err := unwrap(a)
		if err != nil {
			return ""
		}
		url = s
	}
	return url[strings.LastIndex(url, "/")+1:]
}

// setVersion takes the version from the node of a running Envoy.
func (s *Setup) setVersion(node *corev3.Node) {
	v := node.GetUserAgentBuildVersion().GetVersion()
	s.major, s.minor = v.GetMajorNumber(), v.GetMinorNumber()
}
