// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// tree is a decoded message of Envoy: its fields by their names in JSON.
type tree = map[string]any

// translated reads what Envoy Gateway's translator made of a manifest, by make translate, as
// one bootstrap without xDS.
func translated(t *testing.T, name string) tree {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "envoy-gateway", name+".yaml"))
	require.NoError(t, err)
	var dumps []tree
	require.NoError(t, yaml.Unmarshal(text, &dumps))
	// parts returns the messages of a kind, each below the given keys.
	parts := func(kind, list string, keys ...string) []tree {
		var found []tree
		for _, dump := range dumps {
			if dump["@type"] != "type.googleapis.com/envoy.admin.v3."+kind {
				continue
			}
			for _, entry := range dump[list].([]any) {
				for _, key := range keys {
					entry = entry.(tree)[key]
				}
				delete(entry.(tree), "@type")
				found = append(found, entry.(tree))
			}
		}
		require.NotEmpty(t, found, kind)
		return found
	}
	clusters := parts("ClustersConfigDump", "dynamicActiveClusters", "cluster")
	endpoints := parts("EndpointsConfigDump", "dynamicEndpointConfigs", "endpointConfig")
	for _, c := range clusters {
		putEndpoints(t, c, endpoints)
	}
	listeners := parts("ListenersConfigDump", "dynamicListeners", "activeState", "listener")
	routes := parts("RoutesConfigDump", "dynamicRouteConfigs", "routeConfig")
	visit(listeners, func(m tree) {
		if rds, ok := m["rds"].(tree); ok {
			for _, r := range routes {
				if r["name"] == rds["routeConfigName"] {
					delete(m, "rds")
					m["routeConfig"] = r
				}
			}
			require.Contains(t, m, "routeConfig")
		}
	})
	return tree{"staticResources": tree{"listeners": listeners, "clusters": clusters}}
}

// putEndpoints puts the endpoints into a cluster that would get them by EDS or DNS.
func putEndpoints(t *testing.T, cluster tree, endpoints []tree) {
	t.Helper()
	if eds, ok := cluster["edsClusterConfig"].(tree); ok {
		for _, e := range endpoints {
			if e["clusterName"] == eds["serviceName"] {
				cluster["loadAssignment"] = e
			}
		}
	}
	delete(cluster, "edsClusterConfig")
	delete(cluster, "clusterType")
	require.Contains(t, cluster, "loadAssignment")
	cluster["type"] = "STATIC"
}

// visit calls f for each message in v, the inner ones first.
func visit(v any, f func(tree)) {
	switch v := v.(type) {
	case tree:
		for _, item := range v {
			visit(item, f)
		}
		f(v)
	case []tree:
		for _, item := range v {
			visit(item, f)
		}
	case []any:
		for _, item := range v {
			visit(item, f)
		}
	}
}

// readdress replaces addresses, host:port or path, and port 0 for a listener of no use here.
// Each must be there.
func readdress(t *testing.T, bootstrap tree, addresses map[string]string) {
	t.Helper()
	found := map[string]bool{}
	visit(bootstrap, func(m tree) {
		if path, ok := m["path"].(string); ok && addresses[path] != "" {
			m["path"], found[path] = addresses[path], true
		}
		host, ok := m["address"].(string)
		port, isNumber := m["portValue"].(int)
		if !ok || !isNumber {
			return
		}
		old := net.JoinHostPort(host, strconv.Itoa(port))
		to, ok := addresses[old]
		if !ok {
			return
		}
		found[old] = true
		host, number, err := net.SplitHostPort(to)
		require.NoError(t, err)
		m["address"] = host
		m["portValue"], err = strconv.Atoi(number)
		require.NoError(t, err)
	})
	for old := range addresses {
		require.True(t, found[old], "there is no address %s", old)
	}
}

// bootstrapText returns a bootstrap as text.
func bootstrapText(t *testing.T, bootstrap tree) string {
	t.Helper()
	text, err := yaml.Marshal(bootstrap)
	require.NoError(t, err)
	return string(text)
}

// envoyGateway returns what Envoy Gateway made of the manifests with a unix socket and the
// destination route, between the given addresses. log is the name of its access log; without
// one it has none.
func envoyGateway(t *testing.T, dir, listen, engine, log string) string {
	t.Helper()
	b := translated(t, "envoy-gateway-socket")
	readdress(t, b, map[string]string{
		"0.0.0.0:8080": listen, "0.0.0.0:19003": "127.0.0.1:0", "10.96.0.1:8000": engine,
		"/run/holdgate/extproc.sock": filepath.Join(dir, "extproc.sock"),
	})
	logs := 0
	visit(b, func(m tree) {
		all, _ := m["accessLog"].([]any)
		var kept []any
		for _, one := range all {
			if one.(tree)["name"] == "envoy.access_loggers.http_grpc" {
				logs++
				if log == "" {
					continue
				}
				require.Equal(t, log, one.(tree)["typedConfig"].(tree)["commonConfig"].(tree)["logName"])
			}
			kept = append(kept, one)
		}
		if all != nil {
			m["accessLog"] = kept
		}
	})
	require.Equal(t, 2, logs, "one for requests, one for those without a route")
	return bootstrapText(t, b)
}
