// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// newApp makes an app that is not started.
func newApp(t *testing.T, args ...string) *App {
	t.Helper()
	c := &config.Serve{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(t, set.Parse(append([]string{"--site-id=here"}, args...)))
	a, err := New(c, zerolog.Nop())
	require.NoError(t, err)
	return a
}

// documentedMetrics returns the type and the labels of the metrics in docs/metrics.md, by name:
// of those that a router has with --shared only, or of all others.
func documentedMetrics(t *testing.T, ofShared bool) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `((?:hivenet|gen_ai|http_server)_[a-z_]+)` \\| (\\w+) \\|([^|]*)\\| (.*)").FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(row[4], "with `--shared`") == ofShared {
			documented[row[1]] = row[2] + " " + strings.NewReplacer("`", "", ",", "", "  ", " ").Replace(strings.TrimSpace(row[3]))
		}
	}
	require.NotEmpty(t, documented)
	return documented
}

// docs/metrics.md has every metric with its type and labels, and no other.
func TestTheMetricsAreInTheDocs(t *testing.T) {
	t.Parallel()
	documented := documentedMetrics(t, false)
	auth := temporary(t, "keys: [{key_hash: "+strings.Repeat("ab", 32)+", tenant: acme}]")
	limits := temporary(t, "models: {m: {max_inflight: 1, admit_budget_tokens: 100}}")
	bubble(t, func(r *rig) {
		_, err := r.maps.Push([]byte(`{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true}]}`), true)
		require.NoError(t, err)
		r.join(pb.State_STATE_SERVING, "m")
		r.App.metrics.Woke("m", time.Second)
		r.App.metrics.Queued("m", time.Second)
		r.App.metrics.Rejected("m", holdstate.ErrNoQueue)
		r.App.machine.SetTimes("m", []time.Duration{1, 2, 3})
		r.App.envoys.up.WithLabelValues("http://127.0.0.1:1").Set(1)
		observe.Observer{Metrics: r.App.metrics, Audit: r.App.audit}.Ended(&extproc.Record{
			Request: extproc.Request{Fields: body.Fields{Model: "m"}, Endpoint: &extproc.Endpoint{}}, Status: 200, FirstToken: 1, Usage: body.Usage{Known: true},
		})
		checkMetrics(r.t, r.App, documented)
	}, "--auth-file", auth, "--policy-file", limits, "--envoy-admin=http://127.0.0.1:1")
}

// The metrics that a router has with --shared only are in the docs, too.
func TestTheMetricsOfTheSharedStateAreInTheDocs(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	a := sharing(t, server)
	server.Stop()
	polltest.Until(t, "a call fails", func() bool {
		n, err := testutil.GatherAndCount(a.prometheus, "hivenet_shared_errors_total")
		require.NoError(t, err)
		return n > 0
	})
	found := exported(t, a)
	for name, want := range documentedMetrics(t, true) {
		require.ElementsMatch(t, strings.Fields(want), strings.Fields(found[name]), name)
		delete(found, name)
	}
	for name := range found {
		require.NotContains(t, name, "shared", "it is documented")
	}
}

// exported returns the type and the labels of what an app exports, by name.
func exported(t *testing.T, a *App) map[string]string {
	t.Helper()
	found := map[string]string{}
	families, err := a.prometheus.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			continue
		}
		kind := strings.ToLower(f.GetType().String())
		labels := []string{kind}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		found[f.GetName()] = strings.TrimSpace(strings.Join(labels, " "))
	}
	return found
}

// checkMetrics compares what an app exports with what is documented.
func checkMetrics(t *testing.T, a *App, documented map[string]string) {
	t.Helper()
	found := exported(t, a)
	for name, want := range documented {
		// Gathered labels are sorted, the documented ones are in their usual order.
		require.ElementsMatch(t, strings.Fields(want), strings.Fields(found[name]), name)
	}
	require.Len(t, found, len(documented), "%v", found)

	problems, err := testutil.GatherAndLint(a.prometheus)
	require.NoError(t, err)
	require.Empty(t, problems)
}

const mapLoaded = "# HELP acme_map_loaded 1 while the router has a sibling map. Without one only models of backends have a demand.\n# TYPE acme_map_loaded gauge\n"

func TestDemandHasNoSeriesWithoutAMap(t *testing.T) {
	t.Parallel()
	a := newApp(t, "--metrics-prefix=acme_")
	n, err := testutil.GatherAndCount(a.prometheus, "acme_pending_demand", "acme_wake_wanted")
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, testutil.GatherAndCompare(a.prometheus, strings.NewReader(mapLoaded+"acme_map_loaded 0\n"), "acme_map_loaded"))
	_, err = a.maps.Push([]byte(`{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true},{"model":"n","kind":"chat","site":"here"}]}`), false)
	require.NoError(t, err)
	n, err = testutil.GatherAndCount(a.prometheus, "acme_pending_demand", "acme_wake_wanted")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, testutil.GatherAndCompare(a.prometheus, strings.NewReader(mapLoaded+"acme_map_loaded 1\n"), "acme_map_loaded"))
	n, err = testutil.GatherAndCount(a.prometheus, "acme_wake_holds_total")
	require.NoError(t, err)
	require.Equal(t, 7, n, "every outcome from the start")
}

// A router without a site needs no map, so an alert on a missing one must not see it.
func TestARouterWithoutASiteSaysNothingOfAMap(t *testing.T) {
	t.Parallel()
	n, err := testutil.GatherAndCount(newApp(t, "--site-id=").prometheus, "hivenet_map_loaded")
	require.NoError(t, err)
	require.Zero(t, n)
}

// The first failed wake is an increase, and what a wake took is known while the next one runs.
func TestWakesThatFailOrTakeLongAreSeen(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		require.Zero(r.t, r.count("hivenet_wake_failures_total", "m"))
		r.machine.SetTimes("m", []time.Duration{time.Second, 2 * time.Second, 3 * time.Second})
		require.Equal(r.t, 3, r.count("hivenet_wake_expected_seconds", "m"))
		require.Zero(r.t, r.count("hivenet_wake_running_seconds", "m"))
		ask := r.chat("m")
		time.Sleep(40 * time.Second)
		require.Equal(r.t, 40, r.count("hivenet_wake_running_seconds", "m"))
		require.NoError(r.t, r.wakeFailed("m", "no GPU"))
		synctest.Wait()
		require.Contains(r.t, ask.all(), "no GPU")
		require.Zero(r.t, r.count("hivenet_wake_running_seconds", "m"))
		require.Equal(r.t, 1, r.count("hivenet_wake_failures_total", "m"))
		time.Sleep(time.Minute)
	})
}

func TestAFileThatCannotBeUsedRefusesTheStart(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--admin-token-file=does/not/exist":  "--admin-token-file",
		"--agents-token-file=does/not/exist": "--agents-token-file",
		"--agents-tls-cert-file=/dev/null":   "--agents-tls-cert-file",
		"--map-file=.":                       "--map-file",
	} {
		c := &config.Serve{}
		set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		c.Flags(set)
		require.NoError(t, set.Parse([]string{arg}))
		_, err := New(c, zerolog.Nop())
		require.ErrorContains(t, err, want, arg)
	}
}
