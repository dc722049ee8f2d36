// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package wake

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The window of the example is too long for a test. Nothing else is changed.
const (
	exampleWindow = "[2m]"
	testWindow    = "[4s]"
)

// fixture is a router's metrics page, which the test writes.
type fixture struct{ text atomic.Pointer[string] }

func (f *fixture) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprint(w, *f.text.Load())
}

func (f *fixture) set(format string, args ...any) {
	f.text.Store(new(fmt.Sprintf(format, args...)))
}

const page = `# TYPE hivenet_pending_demand gauge
hivenet_pending_demand{model="llama-3-70b"} %d
hivenet_pending_demand{model="other"} 9
# TYPE hivenet_wake_wanted gauge
hivenet_wake_wanted{model="llama-3-70b"} %d
hivenet_wake_wanted{model="other"} 1
# TYPE hivenet_routing_requests_routed_total counter
hivenet_routing_requests_routed_total{tenant_id="default",engine="vllm",region="eu",model="llama-3-70b"} %d
hivenet_routing_requests_routed_total{tenant_id="default",engine="vllm",region="eu",model="other"} %d
`

// startPrometheus gives the URL of a Prometheus that scrapes a target five times a
// second.
func startPrometheus(t *testing.T, target string) string {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("SKIPPED: there is no prometheus on the PATH, so nobody has evaluated the query of examples/keda/prometheus.yaml; " +
			"install the Debian package prometheus")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"global: {scrape_interval: 200ms, scrape_timeout: 200ms}\nscrape_configs: [{job_name: holdgate, static_configs: [{targets: [%q]}]}]\n", target), 0o600))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	})
	return "http://" + address
}

// ask evaluates the query as KEDA does.
func ask(ctx context.Context, server, query string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/api/v1/query?query="+url.QueryEscape(query), http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
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
	text, ok := got.Data.Result[0].Value[1].(string)
	if !ok {
		return 0, fmt.Errorf("%v is no value", got.Data.Result[0].Value)
	}
	return strconv.ParseFloat(text, 64)
}

func TestAPrometheusEvaluatesTheQueryOfTheExample(t *testing.T) {
	trigger := query(t)
	activation, err := strconv.ParseFloat(trigger.Metadata["activationThreshold"], 64)
	require.NoError(t, err)
	require.Contains(t, trigger.Metadata["query"], exampleWindow)
	q := strings.ReplaceAll(trigger.Metadata["query"], exampleWindow, testWindow)

	f := &fixture{}
	f.set("")
	target := httptest.NewServer(f)
	defer target.Close()
	server := startPrometheus(t, target.Listener.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	// until waits for a value and sees that it stays for a second.
	until := func(what string, good func(v float64) bool) {
		t.Helper()
		var v float64
		var err error
		for since := time.Now(); time.Since(since) < time.Second; time.Sleep(100 * time.Millisecond) {
			if v, err = ask(ctx, server, q); err != nil || !good(v) {
				since = time.Now()
			}
			require.NoError(t, ctx.Err(), "%s: the last value was %v, %v", what, v, err)
		}
	}
	zero := func(v float64) bool { return v == 0 }
	one := func(v float64) bool { return v == 1 }
	scraped := func() bool {
		v, err := ask(ctx, server, `sum(up)`)
		return err == nil && v == 1
	}
	for !scraped() {
		require.NoError(t, ctx.Err(), "prometheus scrapes nothing")
		time.Sleep(100 * time.Millisecond)
	}

	until("absent series", zero)
	f.set(page, 0, 0, 0, 0)
	until("at rest", zero)
	f.set(page, 3, 1, 0, 50)
	until("held", func(v float64) bool { return v > activation && v <= 1 })
	f.set(page, 0, 1, 0, 50)
	until("the client has gone, and the wish lingers", one)
	f.set(page, 0, 0, 0, 50)
	until("the wish has gone", zero)

	// A request is routed each 300 ms, as to a model that serves.
	serving, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; serving.Err() == nil; n++ {
			f.set(page, 0, 0, n, 50)
			time.Sleep(300 * time.Millisecond)
		}
	}()
	until("served", one)
	stop()
	<-done
	until("after the window", zero)
	f.set("")
	until("absent series again", zero)
}
