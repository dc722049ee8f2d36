// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/internal/pickertest"
)

// gateways are the files in testdata/chains.
var gateways = []string{"istio", "ai-gateway", "llm-d", "envoy-gateway"}

// chain is a site whose filter stands before that of a gateway's endpoint picker.
type chain struct {
	*site
	picker *pickertest.Picker
	dir    string
	dead   string // an address that the gateway knows, and where nothing listens
}

// chainBootstrap puts what a gateway sets for its picker into the frame, with Holdgate's
// filter before it or not.
func chainBootstrap(t *testing.T, gateway string, holdgate bool) string {
	t.Helper()
	read := func(name string, to any) {
		text, err := os.ReadFile(filepath.Join("testdata", "chains", name+".yaml"))
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, to), name)
	}
	var part struct {
		Filter, Route any
		Clusters      []any
	}
	var frame map[string]any
	read(gateway, &part)
	read("frame", &frame)
	resources := frame["static_resources"].(map[string]any)
	chains := resources["listeners"].([]any)[0].(map[string]any)["filter_chains"].([]any)
	manager := chains[0].(map[string]any)["filters"].([]any)[0].(map[string]any)["typed_config"].(map[string]any)
	filters := manager["http_filters"].([]any)
	manager["http_filters"] = []any{filters[0], part.Filter, filters[1]}
	if !holdgate {
		manager["http_filters"] = []any{part.Filter, filters[1]}
	}
	host := manager["route_config"].(map[string]any)["virtual_hosts"].([]any)[0].(map[string]any)
	host["routes"] = []any{part.Route}
	resources["clusters"] = append(resources["clusters"].([]any), part.Clusters...)
	text, err := yaml.Marshal(frame)
	require.NoError(t, err)
	return string(text)
}

// servePicker serves a picker on a unix socket.
func servePicker(t *testing.T, p *pickertest.Picker, path string) {
	t.Helper()
	t.Cleanup(p.Serve(listenUnix(t, path)))
}

func listenUnix(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	return l
}

// newChain makes the parts of a chain, and starts none.
func newChain(t *testing.T) *chain {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &chain{site: &site{t: t, log: &buffer{}, http: newHTTPClient(t)}, picker: &pickertest.Picker{}, dir: dir, dead: closedPort(t)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.log.String())
		}
	})
	return c
}

// runChain runs the Envoy of a gateway, with a listener at an address, before an engine.
func (c *chain) runChain(gateway, listen, engine string) {
	c.t.Helper()
	c.runWith(chainBootstrap(c.t, gateway, true), listen, engine)
}

// runPool runs an Envoy with a picker and without Holdgate.
func (c *chain) runPool(listen, engine string) {
	c.t.Helper()
	c.runWith(chainBootstrap(c.t, "llm-d", false), listen, engine)
}

func (c *chain) runWith(text, listen, engine string) {
	c.t.Helper()
	deadHost, deadPort, err := net.SplitHostPort(c.dead)
	require.NoError(c.t, err)
	text = strings.NewReplacer("DEAD_HOST", deadHost, "DEAD_PORT", deadPort).Replace(text)
	c.runGateway(c.dir, text, listen, engine)
}

// startChain starts a gateway with a picker that names an engine, and Holdgate before it.
func startChain(t *testing.T, gateway, engine string, flags ...string) *chain {
	t.Helper()
	c := newChain(t)
	listen := closedPort(t)
	c.startApp(c.dir, append([]string{"--destination", "route", "--relay", "http://" + listen}, flags...))
	c.picker.Name(engine)
	servePicker(t, c.picker, filepath.Join(c.dir, "picker.sock"))
	c.runChain(gateway, listen, engine)
	require.Equal(t, http.StatusOK, c.putMap(testMap).status)
	return c
}

// pickerVariable makes the test program a picker instead: it has the path of its socket and
// the endpoint.
const pickerVariable = "HOLDGATE_TEST_PICKER"

// runAsPicker serves a picker until the process is killed, if the environment says so.
func runAsPicker() {
	path, endpoint, found := strings.Cut(os.Getenv(pickerVariable), " ")
	if !found {
		return
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	p := &pickertest.Picker{}
	p.Name(endpoint)
	p.Serve(l)
	fmt.Println("the picker is ready")
	select {}
}

// startPicker runs a picker that can be killed.
func startPicker(t *testing.T, path, endpoint string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := startProgram(t, "env", pickerVariable+"="+path+" "+endpoint, self)
	p.waitLog("the picker is ready")
	return p
}
