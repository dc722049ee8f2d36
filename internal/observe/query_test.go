// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// selector is a metric in a query, with the labels by which its series are selected.
type selector struct {
	name   string
	labels []string
}

// query is what a query in PromQL names.
type query struct {
	selectors []selector
	grouped   []string // the labels of by, on and the like
}

var (
	promQLTokens = regexp.MustCompile(`"[^"]*"|'[^']*'|\$\w+|[a-zA-Z_:][\w:]*|[0-9][\w.]*|[!=<>~]+|\S`)
	promQLName   = regexp.MustCompile(`^[a-zA-Z_:]`)
	// groupings are followed by labels in parentheses; operators stand between two expressions.
	groupings = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
	operators = []string{"and", "or", "unless", "bool", "offset"}
)

// readQuery finds the names in a query. That it is valid PromQL is checked by promtool.
func readQuery(text string) query {
	var q query
	tokens := promQLTokens.FindAllString(text, -1)
	for i := 0; i < len(tokens); i++ {
		token, next := tokens[i], ""
		if i+1 < len(tokens) {
			next = tokens[i+1]
		}
		switch {
		case !promQLName.MatchString(token), slices.Contains(operators, token):
		case slices.Contains(groupings, token):
			var labels []string
			labels, i = namesUntil(tokens, i+1, ")")
			q.grouped = append(q.grouped, labels...)
		case next == "(", slices.Contains(groupings, next): // a function
		case next == "{":
			s := selector{name: token}
			s.labels, i = namesUntil(tokens, i+1, "}")
			q.selectors = append(q.selectors, s)
		default:
			q.selectors = append(q.selectors, selector{name: token})
		}
	}
	return q
}

// namesUntil returns the names in tokens from a place on, and the place of the token that ends them.
func namesUntil(tokens []string, from int, end string) (list []string, at int) {
	for at = from; at < len(tokens) && tokens[at] != end; at++ {
		if promQLName.MatchString(tokens[at]) {
			list = append(list, tokens[at])
		}
	}
	return list, at
}

// family returns the name of the metric of which a name is a series: of a histogram, there are
// three.
func (s selector) family() (name string, labels []string) {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, cut := strings.CutSuffix(s.name, suffix); cut {
			if suffix == "_bucket" {
				return base, []string{"le"}
			}
			return base, nil
		}
	}
	return s.name, nil
}

func TestTheNamesOfAQuery(t *testing.T) {
	t.Parallel()
	tests := map[string]query{
		`up`: {selectors: []selector{{name: "up"}}},
		`max by (job, model) (a_b{x="and{", y!~"z"}) > 2 * sum(rate(c_total[15m])) without (le)`: {
			selectors: []selector{{name: "a_b", labels: []string{"x", "y"}}, {name: "c_total"}}, grouped: []string{"job", "model", "le"},
		},
		`a:b:c and on() (d offset 5m unless e{})`: {selectors: []selector{{name: "a:b:c"}, {name: "d"}, {name: "e"}}},
		`histogram_quantile(0.9, sum by (le) (rate(h_bucket{job=~"$job"}[$__rate_interval]))) or vector(0)`: {
			selectors: []selector{{name: "h_bucket", labels: []string{"job"}}}, grouped: []string{"le"},
		},
	}
	for text, want := range tests {
		require.Equal(t, want, readQuery(text), text)
	}
}
