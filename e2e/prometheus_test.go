// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/envoy"
)

// tool returns the path of a program that `make tools-test` installs.
func tool(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(root(t), ".tools", "bin", name)
	require.FileExists(t, path, "run `make tools-test`")
	return path
}

// prometheus is a real Prometheus server.
type prometheus struct {
	t   *testing.T
	url string
}

// startPrometheus starts a Prometheus that scrapes a target and evaluates files of rules five times
// a second.
func startPrometheus(t *testing.T, target string, rules ...string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\nrule_files: [%s]\n"+
			"scrape_configs: [{job_name: holdgate, static_configs: [{targets: [%q]}]}]\n", strings.Join(rules, ", "), target), 0o600))
	address := closedPort(t)
	p := startProgram(t, tool(t, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	t.Cleanup(func() {
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, p.ends())
	})
	return &prometheus{t: t, url: "http://" + address}
}

// value evaluates a query as KEDA does.
func (p *prometheus) value(query string) (float64, error) {
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url+"/api/v1/query?query="+url.QueryEscape(query), http.NoBody)
	require.NoError(p.t, err)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var got struct {
		Status string
		Error  string
		Data   struct{ Result []struct{ Value [2]any } }
	}
	if err := json.UnmarshalRead(resp.Body, &got, json.MatchCaseInsensitiveNames(true)); err != nil {
		return 0, err
	}
	if got.Status != "success" || len(got.Data.Result) != 1 {
		return 0, fmt.Errorf("%s %s: %d results", got.Status, got.Error, len(got.Data.Result))
	}
	return strconv.ParseFloat(fmt.Sprint(got.Data.Result[0].Value[1]), 64)
}

// requireSteady waits until a query has had a good value for half a second.
func (p *prometheus) requireSteady(what, query string, good func(v float64) bool) {
	p.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for since := time.Now(); time.Since(since) < 500*time.Millisecond; time.Sleep(50 * time.Millisecond) {
		v, err := p.value(query)
		if err != nil || !good(v) {
			since = time.Now()
		}
		require.True(p.t, time.Now().Before(deadline), "%s: the last value was %v, %v", what, v, err)
	}
}

// exampleQuery returns the query of the shipped ScaledObject, and the value above which
// KEDA wakes its model.
func exampleQuery(t *testing.T) (query string, activation float64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "examples", "keda", "prometheus.yaml"))
	require.NoError(t, err)
	var object struct {
		Spec struct {
			Triggers []struct{ Metadata map[string]string }
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &object))
	metadata := object.Spec.Triggers[0].Metadata
	activation, err = strconv.ParseFloat(metadata["activationThreshold"], 64)
	require.NoError(t, err)
	return metadata["query"], activation
}

// startServe starts holdgate as a user does, with an Envoy in front.
func startServe(t *testing.T, flags ...string) (s *site, serve *process, ports map[string]string) {
	t.Helper()
	s, serve, ports, _ = startServeIn(t, socketDir(t), flags...)
	return s, serve, ports
}

// socketDir returns a directory whose path is short enough for sockets.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// startServeIn is startServe with its sockets in a directory.
func startServeIn(t *testing.T, dir string, flags ...string) (s *site, serve *process, ports map[string]string, front *envoy.Process) {
	t.Helper()
	serve = start(t, append([]string{
		"serve", "--site-id", "here", "--extproc-listen", "unix://" + dir + "/extproc.sock", "--relay", "unix://" + dir + "/relay.sock",
		"--agents-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--ports-file", dir + "/ports.json",
	}, flags...)...)
	serve.waitLog("holdgate is ready")
	text, err := os.ReadFile(dir + "/ports.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &ports))
	front = startEnvoy(t, dir, &buffer{}, backendCAs(t, flags)...)
	return &site{t: t, url: "http://" + front.EdgeAddr(), http: newHTTPClient(t)}, serve, ports, front
}

// The shipped query has the values that KEDA's Prometheus trigger needs, through the
// whole life of a model.
func TestAPrometheusEvaluatesTheQueryOfTheExample(t *testing.T) {
	const model = "llama-3-70b"
	query, activation := exampleQuery(t)
	// Two minutes are too long for a test. Only the window is changed.
	require.Equal(t, 1, strings.Count(query, "[2m]"))
	query = strings.ReplaceAll(query, "[2m]", "[4s]")
	zero := func(v float64) bool { return v == 0 }
	one := func(v float64) bool { return v == 1 }

	s, serve, ports := startServe(t, "--wake-linger", "2s")
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	p := startPrometheus(t, ports["admin"])
	p.requireSteady("scraped", `sum(up)`, one)
	p.requireSteady("no map, so that the series are absent", query, zero)

	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+ports["admin"]+"/v1/sitemap",
		strings.NewReader(`{"placements":[{"model":"`+model+`","kind":"chat","site":"here","scale_from_zero":true}]}`))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, s.do(r).status)
	p.requireSteady("the series are there at once", `hivenet_pending_demand{model="`+model+`"} + 1`, one)
	p.requireSteady("at rest", query, zero)

	ctx, leave := context.WithCancel(t.Context())
	held := s.start(ctx, chatPath, chatBody(model, false))
	p.requireSteady("held", query, func(v float64) bool { return v > activation && v <= 1 })
	leave()
	<-held
	p.requireSteady("the client has disconnected, and the need lingers", `(`+query+`) - on() sum(hivenet_pending_demand)`, one)
	p.requireSteady("the need has ended", query, zero)

	held = s.start(t.Context(), chatPath, chatBody(model, false))
	p.requireSteady("held again", query, one)
	engine := newEngine(t, nil)
	start(t, "agent", "--router", ports["agents"], "--engine", "custom", "--backend-url", "http://"+engine.addr(),
		"--health-path", "/", "--model", model, "--capability", "llm", "--capacity", "4")
	require.Equal(t, http.StatusOK, (<-held).status)
	// The counter began with that request, so only the next one is an increase.
	p.requireSteady("the request was counted", `sum(hivenet_routing_requests_routed_total)`, one)

	// A request each two seconds relates to this window as one per minute to two
	// minutes.
	ask := func() { require.Equal(t, http.StatusOK, s.post(chatPath, chatBody(model, false)).status) }
	ask()
	p.requireSteady("served", query, one)
	for range 3 {
		ask()
		for begin := time.Now(); time.Since(begin) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
			v, err := p.value(query)
			require.NoError(t, err)
			require.InDelta(t, 1, v, 0, "served all the time")
		}
	}
	p.requireSteady("after the window", query, zero)
	lintMetrics(t, s, ports["admin"])

	require.NoError(t, serve.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, serve.ends())
	p.requireSteady("the router has gone, and its series with it", query, zero)
}

// lintMetrics has promtool read a page of metrics.
func lintMetrics(t *testing.T, s *site, admin string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin+"/metrics", http.NoBody)
	require.NoError(t, err)
	page := s.do(r).body
	require.Contains(t, page, "hivenet_wake_seconds_count")
	check := exec.CommandContext(t.Context(), tool(t, "promtool"), "check", "metrics")
	check.Stdin = strings.NewReader(page)
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, out)
}
