// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	grafana "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const monitoring = "../../examples/monitoring/"

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// rule is a recording rule or an alert.
type rule struct{ Record, Alert, Expr string }

// rules returns the rules of the example.
func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	require.NoError(t, yaml.Unmarshal(read(t, monitoring+"rules.yaml"), &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// documented returns the labels of the metrics in docs/metrics.md, which are those that a router
// exports: internal/app.TestTheMetricsAreInTheDocs compares them. Added are the metrics that
// Prometheus makes, and what the rules record.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{"up": nil, "process_resident_memory_bytes": nil, "process_cpu_seconds_total": nil}
	label := regexp.MustCompile("`(\\w+)`")
	rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (?:gauge|counter|histogram) \\|([^|]*)\\|").FindAllStringSubmatch(string(read(t, "../../docs/metrics.md")), -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		all[row[1]] = nil
		for _, l := range label.FindAllStringSubmatch(row[2], -1) {
			all[row[1]] = append(all[row[1]], l[1])
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			all[r.Record] = readQuery(r.Expr).grouped
		}
	}
	return all
}

// requireKnown fails if a query has a metric that is not known, or a label that its series do not
// have. shown are further labels that the series of its result must have.
func requireKnown(t *testing.T, known map[string][]string, text string, shown ...string) {
	t.Helper()
	q := readQuery(text)
	require.NotEmpty(t, q.selectors, text)
	common := []string{"job", "instance"}
	var union []string
	for _, s := range q.selectors {
		name, more := s.family()
		labels, found := known[name]
		if !found {
			labels, found = known[s.name]
		}
		require.True(t, found, "no router exports %s: %s", s.name, text)
		labels = slices.Concat(labels, more, common)
		require.Subset(t, labels, s.labels, "%s: %s", s.name, text)
		union = append(union, labels...)
	}
	require.Subset(t, union, slices.Concat([]string{"job"}, q.grouped, shown), text)
}

// Each rule, and each series of the rules' tests, is of metrics that a router exports.
func TestTheRulesNameOnlyWhatIsExported(t *testing.T) {
	t.Parallel()
	known := documented(t)
	for _, r := range rules(t) {
		requireKnown(t, known, r.Expr)
	}
	series := regexp.MustCompile(`series: '([^']*)'`).FindAllStringSubmatch(string(read(t, monitoring+"rules_test.yaml")), -1)
	require.NotEmpty(t, series)
	for _, s := range series {
		requireKnown(t, known, s[1])
	}
}

// promtool runs the tests; this is that there are enough of them.
func TestEachAlertHasATestInWhichItFiresAndOneInWhichItIsSilent(t *testing.T) {
	t.Parallel()
	var file struct {
		Tests []struct {
			Name  string
			Alert []struct {
				Name   string `yaml:"alertname"`
				Alerts []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(read(t, monitoring+"rules_test.yaml"), &file))
	fires, rests := map[string]bool{}, map[string]bool{}
	for i, test := range file.Tests {
		for _, a := range test.Alert {
			if len(a.Alerts) > 0 {
				fires[a.Name] = true
			} else if i == 0 { // at rest
				rests[a.Name] = true
			}
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" {
			require.True(t, fires[r.Alert], "%s never fires", r.Alert)
			require.True(t, rests[r.Alert], "%s is not looked at while nothing is wrong", r.Alert)
		}
	}
}

// docs/metrics.md says of each alert what it means and what to do.
func TestTheAlertsAreInTheDocs(t *testing.T) {
	t.Parallel()
	var documented, alerts []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(Holdgate\\w+)` \\| .{20,} \\| .{20,} \\|$").FindAllStringSubmatch(string(read(t, "../../docs/metrics.md")), -1) {
		documented = append(documented, row[1])
	}
	for _, r := range rules(t) {
		if r.Alert != "" {
			alerts = append(alerts, r.Alert)
		}
	}
	require.Equal(t, alerts, documented)
}

// The dashboard is one by the types that Grafana publishes, whose decoder refuses fields that
// Grafana does not have.
func TestTheDashboardIsValid(t *testing.T) {
	t.Parallel()
	cog.NewRuntime().RegisterDataqueryVariant(grafana.VariantConfig())
	cog.NewRuntime().RegisterPanelcfgVariant(timeseries.VariantConfig())
	cog.NewRuntime().RegisterPanelcfgVariant(stat.VariantConfig())
	text := read(t, monitoring+"dashboard.json")
	faults := func(text string) string {
		var d dashboard.Dashboard //nolint:staticcheck // the schema that every version of Grafana imports
		// Without a fault the decoder returns an empty list, which is not a nil error.
		if err := d.UnmarshalJSONStrict([]byte(text)); err != nil && err.Error() != "" {
			return err.Error()
		}
		require.NoError(t, d.Validate())
		return ""
	}
	require.Empty(t, faults(string(text)))
	for _, wrong := range []string{
		strings.Replace(string(text), `"graphTooltip"`, `"graphTooltips"`, 1),
		strings.Replace(string(text), `"legendFormat"`, `"legend"`, 1),
		strings.Replace(string(text), `"reduceOptions"`, `"reduce"`, 1),
	} {
		require.NotEmpty(t, faults(wrong))
	}
}

// panel is what is checked of a panel beyond its types.
type panel struct {
	ID       int `json:"id"`
	Type     string
	Title    string
	Position struct{ X, Y, W, H int } `json:"gridPos"`
	Targets  []struct {
		RefID, Expr, LegendFormat string
	}
}

// panels returns the panels of the dashboard, and the queries of its variables.
func panels(t *testing.T) (all []panel, variables []string) {
	t.Helper()
	var d struct {
		Panels     []panel
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	require.NoError(t, json.Unmarshal(read(t, monitoring+"dashboard.json"), &d, json.MatchCaseInsensitiveNames(true)))
	require.NotEmpty(t, d.Panels)
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			variables = append(variables, v.Definition)
		}
	}
	return d.Panels, variables
}

// Each query of the dashboard is of metrics that a router exports, and a legend has labels that the
// result has.
func TestTheDashboardNamesOnlyWhatIsExported(t *testing.T) {
	t.Parallel()
	known := documented(t)
	all, variables := panels(t)
	inLegend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	for _, p := range all {
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		for _, target := range p.Targets {
			var shown []string
			for _, l := range inLegend.FindAllStringSubmatch(target.LegendFormat, -1) {
				shown = append(shown, l[1])
			}
			requireKnown(t, known, target.Expr, shown...)
		}
	}
	require.NotEmpty(t, variables)
	for _, v := range variables {
		found := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v)
		require.NotNil(t, found, v)
		requireKnown(t, known, found[1], found[2])
	}
}

// No two panels have one id or one place.
func TestThePanelsDoNotOverlap(t *testing.T) {
	t.Parallel()
	const width = 24
	all, _ := panels(t)
	cells, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range all {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		require.LessOrEqual(t, p.Position.X+p.Position.W, width, p.Title)
		for x := range p.Position.W {
			for y := range p.Position.H {
				at := [2]int{p.Position.X + x, p.Position.Y + y}
				require.Empty(t, cells[at], "%s is over %s", p.Title, cells[at])
				cells[at] = p.Title
			}
		}
	}
}
