// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/internal/settings"
)

// plainFile is the file's shape as the YAML library alone would read it.
type plainFile struct {
	Models map[string]struct {
		Aliases           []string `yaml:"aliases"`
		MaxInflight       int64    `yaml:"max_inflight"`
		AdmitBudgetTokens int64    `yaml:"admit_budget_tokens"`
		Destination       string   `yaml:"destination"`
		Steps             []struct {
			Name  string `yaml:"name"`
			Match struct {
				Engine string            `yaml:"engine"`
				Region string            `yaml:"region"`
				Labels map[string]string `yaml:"labels"`
			} `yaml:"match"`
			MaxTries int64 `yaml:"max_tries"`
		} `yaml:"steps"`
	} `yaml:"models"`
}

// FuzzParse: no input panics; what is refused has a reason in clean text; what is
// accepted is accepted by the library's own strict decoder with the same values.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", whole, "models:", "models: {a: {aliases: [b]}}", "models: {a: {aliases: [a, b, b]}}", "models: {a: {destination: route}}",
		"models: {a: {max_inflight: 0x10, admit_budget_tokens: 1_000}}", "models: {a: &x {}, b: *x}",
		"models: {a: {steps: [{name: x, match: {labels: {b: c}}, max_tries: 1}, {name: x}]}}",
		"models: {}\n---\n", "? [a]\n: b", "models: {\"\\0\": 1}", "%YAML 1.1\n---\n!!map {models: !!str }", "\xff\xfea\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if err != nil {
			var problems settings.Problems
			require.ErrorAs(t, err, &problems)
			require.NotEmpty(t, problems)
			for _, one := range problems {
				s := one.String()
				require.NotEmpty(t, one.Message)
				require.True(t, utf8.ValidString(s), "%q", s)
				require.False(t, strings.ContainsFunc(s, unicode.IsControl), "%q", s)
				require.Less(t, len(s), 4000)
			}
			return
		}
		var plain plainFile
		dec := yaml.NewDecoder(bytes.NewReader(data))
		dec.KnownFields(true)
		require.NoError(t, dec.Decode(&plain))
		require.Len(t, p.Models(), len(plain.Models))
		for name, want := range plain.Models {
			requireSame(t, name, p, &Model{Aliases: want.Aliases, MaxInflight: want.MaxInflight, AdmitBudgetTokens: want.AdmitBudgetTokens, Destination: Destination(want.Destination)})
			steps := p.Model(name).Steps
			require.Len(t, steps, len(want.Steps))
			for i, s := range want.Steps {
				require.Equal(t, s.Name, steps[i].Name)
				require.Equal(t, s.MaxTries, steps[i].MaxTries)
				require.Equal(t, []string{s.Match.Engine, s.Match.Region}, []string{steps[i].Match.Engine, steps[i].Match.Region})
				require.Len(t, steps[i].Match.Labels, len(s.Match.Labels))
				for k, v := range s.Match.Labels {
					require.Equal(t, v, steps[i].Match.Labels[k])
				}
			}
		}
	})
}

func requireSame(t *testing.T, name string, p *Policy, want *Model) {
	t.Helper()
	m := p.Model(name)
	require.NotNil(t, m, "%q", name)
	require.Equal(t, name, p.Resolve(name))
	require.True(t, slices.Equal(want.Aliases, m.Aliases))
	require.Equal(t, want.MaxInflight, m.MaxInflight)
	require.Equal(t, want.AdmitBudgetTokens, m.AdmitBudgetTokens)
	require.Equal(t, want.Destination, m.Destination)
	for _, a := range m.Aliases {
		require.Equal(t, name, p.Resolve(a))
		require.Nil(t, p.Model(a), "%q", a)
	}
}
