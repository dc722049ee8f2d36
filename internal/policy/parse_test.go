// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/settings"
)

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text string
		want []string // a problem each
	}{
		"nothing": {"", []string{"must not be empty"}},
		"another destination": {
			"models: {a: {destination: gateway}, b: {destination: [route]}}",
			[]string{"models.a.destination: must be replica, route or endpoint (line 1)", "models.b.destination: must be a string, in quotes where it looks like something else, is a list (line 1)"},
		},
		"a comment":           {"# models:\n", []string{"must not be empty"}},
		"an empty document":   {"---\n", []string{"must not be empty"}},
		"two documents":       {"models: {}\n---\nmodels: {}\n", []string{"must hold one YAML document"}},
		"an empty second one": {"models: {}\n---\n", []string{"must hold one YAML document"}},
		"a broken second one": {"models: {}\n---\n[", []string{"is not YAML: line 3: did not find expected node content"}},
		"no YAML":             {"models: {a", []string{"is not YAML: line 1: did not find expected ',' or '}'"}},
		"a list on top":       {"- models", []string{`must be a mapping, is a list (line 1)`}},
		"a word on top":       {"models", []string{`must be a mapping, is "models" (line 1)`}},
		"another tag on top":  {"!!set {models: }", []string{`must be a mapping, is a mapping (line 1)`}},
		"an unknown section":  {"modles: {}", []string{"modles: is not known (line 1)"}},
		"a section twice":     {"models: {}\nmodels: {}", []string{"models: is given twice: first in line 1 (line 2)"}},
		"models is a list":    {"models: [a]", []string{"models: must be a mapping, is a list (line 1)"}},
		"a model twice": {
			"models:\n  a:\n  b:\n  a:", []string{"models.a: is given twice: first in line 2 (line 4)"},
		},
		"a model that is a number": {
			"models: {3: {}}",
			[]string{`models: each key must be a string, in quotes where it looks like something else, is the int "3" (line 1)`},
		},
		"a merge": {
			"models: {a: {<<: {max_inflight: 1}}}",
			[]string{`models.a: each key must be a string, in quotes where it looks like something else, is the merge "<<" (line 1)`},
		},
		"a reference": {
			"models:\n  a: &x {max_inflight: 1}\n  b: *x",
			[]string{"models.b: must be written out, is a reference to an anchor (line 3)"},
		},
		"a key that is a list": {
			"models: {[a]: {}}",
			[]string{"models: each key must be a string, in quotes where it looks like something else, is a list (line 1)"},
		},
		"a model without a name": {`models: {"": {}}`, []string{`models."": must not be empty (line 1)`}},
		"a long name": {
			"models:\n  ? " + strings.Repeat("a", 257) + "\n  : {}",
			[]string{`models."` + strings.Repeat("a", 64) + `"…: must have at most 256 bytes, has 257 (line 2)`},
		},
		"a control character": {
			`models: {"a\tb": {aliases: ["\x7f", "\u0085", "\0"]}}`,
			[]string{
				`models."a\tb": must not contain control characters, is "a\tb" (line 1)`,
				`models."a\tb".aliases[0]: must not contain control characters, is "\x7f" (line 1)`,
				`models."a\tb".aliases[1]: must not contain control characters, is "\u0085" (line 1)`,
				`models."a\tb".aliases[2]: must not contain control characters, is "\x00" (line 1)`,
			},
		},
		"an unknown field": {"models: {a: {max_in_flight: 1}}", []string{"models.a.max_in_flight: is not known (line 1)"}},
		"a field twice": {
			"models: {a: {max_inflight: 1, max_inflight: 2}}",
			[]string{"models.a.max_inflight: is given twice: first in line 1 (line 1)"},
		},
		"aliases that are one word": {"models: {a: {aliases: b}}", []string{`models.a.aliases: must be a list, is "b" (line 1)`}},
		"aliases of other types": {
			"models: {a: {aliases: [1, true, 1.5, null, [b], {c: d}, !x e, 2027-01-01]}}",
			[]string{
				`models.a.aliases[0]: must be a string, in quotes where it looks like something else, is the int "1" (line 1)`,
				`models.a.aliases[1]: must be a string, in quotes where it looks like something else, is the bool "true" (line 1)`,
				`models.a.aliases[2]: must be a string, in quotes where it looks like something else, is the float "1.5" (line 1)`,
				`models.a.aliases[3]: must be a string, in quotes where it looks like something else, is empty (line 1)`,
				`models.a.aliases[4]: must be a string, in quotes where it looks like something else, is a list (line 1)`,
				`models.a.aliases[5]: must be a string, in quotes where it looks like something else, is a mapping (line 1)`,
				`models.a.aliases[6]: must be a string, in quotes where it looks like something else, is "e" (line 1)`,
				`models.a.aliases[7]: must be a string, in quotes where it looks like something else, is the timestamp "2027-01-01" (line 1)`,
			},
		},
		"an alias that is a model": {
			"models: {a: {aliases: [b, a]}, b: {}}",
			[]string{
				`models.a.aliases[0]: "b" is the name of a model (line 1)`,
				`models.a.aliases[1]: "a" is the name of a model (line 1)`,
			},
		},
		"an alias of two models": {
			"models:\n  a: {aliases: [c]}\n  b: {aliases: [c]}",
			[]string{`models.b.aliases[0]: is given twice: "c" is an alias of model "a" in line 2 (line 3)`},
		},
		"an alias twice": {
			"models: {a: {aliases: [c, d, c]}}",
			[]string{`models.a.aliases[2]: is given twice: "c" is an alias of model "a" in line 1 (line 1)`},
		},
		"bad numbers": {
			"models: {a: {max_inflight: 0}, b: {max_inflight: -1}, c: {max_inflight: 1.0}, d: {max_inflight: \"1\"}, e: {max_inflight: }," +
				" f: {max_inflight: 1000001}, g: {max_inflight: 99999999999999999999}, h: {max_inflight: [1]}}",
			[]string{
				`models.a.max_inflight: must be a whole number from 1 to 1000000, is the int "0" (line 1)`,
				`models.b.max_inflight: must be a whole number from 1 to 1000000, is the int "-1" (line 1)`,
				`models.c.max_inflight: must be a whole number from 1 to 1000000, is the float "1.0" (line 1)`,
				`models.d.max_inflight: must be a whole number from 1 to 1000000, is "1" (line 1)`,
				`models.e.max_inflight: must be a whole number from 1 to 1000000, is empty (line 1)`,
				`models.f.max_inflight: must be a whole number from 1 to 1000000, is the int "1000001" (line 1)`,
				`models.g.max_inflight: must be a whole number from 1 to 1000000, is the float "99999999999999999999" (line 1)`,
				`models.h.max_inflight: must be a whole number from 1 to 1000000, is a list (line 1)`,
			},
		},
		"too many tokens and tries": {
			"models: {a: {admit_budget_tokens: 1000000000001, steps: [{name: b, max_tries: 1001}]}}",
			[]string{
				`models.a.admit_budget_tokens: must be a whole number from 1 to 1000000000000, is the int "1000000000001" (line 1)`,
				`models.a.steps[0].max_tries: must be a whole number from 1 to 1000, is the int "1001" (line 1)`,
			},
		},
		"bad steps": {
			"models:\n  a:\n    steps:\n    - {}\n    -\n    - {name: }\n    - {name: x, tries: 1}\n    - x\n    - {name: x}",
			[]string{
				"models.a.steps[0]: needs a name (line 4)",
				"models.a.steps[1]: needs a name (line 5)",
				"models.a.steps[2].name: must be a string, in quotes where it looks like something else, is empty (line 6)",
				"models.a.steps[3].tries: is not known (line 7)",
				`models.a.steps[4]: must be a mapping, is "x" (line 8)`,
				`models.a.steps[5].name: is given twice: "x" is the name of models.a.steps[3] (line 9)`,
			},
		},
		"steps that give nothing new": {
			"models:\n  a:\n    steps:\n    - {name: eu, match: {region: eu}}\n    - {name: again, match: {region: eu}}\n" +
				"    - {name: any}\n    - {name: a100, match: {engine: vllm, labels: {gpu: a100}}, max_tries: 1}",
			[]string{
				`models.a.steps[1]: matches no replica that step "eu" does not match, which has no max_tries (line 5)`,
				`models.a.steps[3]: matches no replica that step "any" does not match, which has no max_tries (line 7)`,
			},
		},
		"more labels than an agent has": {
			"models: {a: {steps: [{name: x, match: {labels: {" + manyLabels(65) + "}}}]}}",
			[]string{"models.a.steps[0].match.labels: must be at most 64, as for an agent, not 65 (line 1)"},
		},
		"bad matches": {
			`models: {a: {steps: [{name: x, match: {engine: 1, regoin: eu, region: "", labels: {"": a, b: 2}}}]}}`,
			[]string{
				`models.a.steps[0].match.engine: must be a string, in quotes where it looks like something else, is the int "1" (line 1)`,
				`models.a.steps[0].match.regoin: is not known (line 1)`,
				`models.a.steps[0].match.region: must not be empty (line 1)`,
				`models.a.steps[0].match.labels."": must not be empty (line 1)`,
				`models.a.steps[0].match.labels.b: must be a string, in quotes where it looks like something else, is the int "2" (line 1)`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Parse([]byte(tt.text))
			require.Nil(t, p)
			var problems settings.Problems
			require.ErrorAs(t, err, &problems)
			require.Equal(t, strings.Join(tt.want, "\n"), err.Error())
			require.Len(t, problems, len(tt.want))
		})
	}
}

func manyLabels(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("l%d: v", i))
	}
	return strings.Join(all, ", ")
}

func TestStepsThatGiveMoreAreTaken(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string]string{
		"the narrow one first":          "{name: eu, match: {region: eu}}, {name: any}",
		"tries of the first are used":   "{name: any, max_tries: 2}, {name: eu, match: {region: eu}}, {name: rest}",
		"other regions, other engines":  "{name: a, match: {region: eu}}, {name: b, match: {region: us}}, {name: c, match: {engine: vllm}}",
		"one label of two":              "{name: a, match: {labels: {gpu: a100, zone: z}}}, {name: b, match: {labels: {gpu: a100}}}",
		"another value":                 "{name: a, match: {labels: {gpu: a100}}}, {name: b, match: {labels: {gpu: h100}}}",
		"as many labels as agents have": "{name: a, match: {labels: {" + manyLabels(64) + "}}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, parse(t, "models: {m: {steps: ["+steps+"]}}").Model("m").Steps)
		})
	}
}

func TestParseAcceptsAtTheLimits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 128)
	p := parse(t, fmt.Sprintf(`models: {"é": {aliases: [%s, "a b", '{"'], max_inflight: 1000000,
		admit_budget_tokens: 1_000_000_000_000, steps: [{name: s, max_tries: 1000}]}}`, long))
	require.Equal(t, "é", p.Resolve(long))
	require.Equal(t, &Model{
		Aliases: []string{long, "a b", `{"`}, MaxInflight: 1_000_000, AdmitBudgetTokens: 1_000_000_000_000,
		Steps: []Step{{Name: "s", MaxTries: 1000}},
	}, p.Model("é"))
	require.Empty(t, parse(t, "models:").Models(), "what has only comments below it is empty")
	require.Empty(t, parse(t, "{}").Models())
	require.Equal(t, &Model{}, parse(t, "models: {a: {aliases: , steps: []}}").Model("a"))
}

func TestAHopelessFileGivesABoundedAnswer(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte("models: [" + strings.Repeat("{},", 1000) + "]\n" + strings.Repeat("? [a]\n", 1000)))
	var problems settings.Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 101)
	require.Equal(t, "more than 100 problems: the rest is not listed", problems[100].String())

	_, err = Parse([]byte("models: {" + strings.Repeat("x", 500) + ": 1}"))
	require.Less(t, len(err.Error()), 300)
}

// TestReferencesDoNotMultiply is the file of few bytes that stands for many.
func TestReferencesDoNotMultiply(t *testing.T) {
	t.Parallel()
	text := "a: &a [x" + strings.Repeat(", x", 8) + "]\n"
	for c := 'b'; c < 'k'; c++ {
		text += fmt.Sprintf("%c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c, ", c-1), 8), c-1)
	}
	_, err := Parse([]byte(text + "models: *j\n"))
	require.ErrorContains(t, err, "models: must be written out, is a reference to an anchor")
}
