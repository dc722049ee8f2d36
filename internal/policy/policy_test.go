// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const whole = `
models:
  llama-3-70b:
    aliases: [llama, gpt-4o-mini]
    max_inflight: 16          # per healthy replica
    admit_budget_tokens: 262144
    steps:
    - {name: local, match: {engine: vllm, region: eu, labels: {gpu: h100}}, max_tries: 3}
    - {name: any}
  qwen:
  nomic: {aliases: ["text embedding", "42"]}
`

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text))
	require.NoError(t, err)
	return p
}

func TestParseReadsTheWholeShape(t *testing.T) {
	t.Parallel()
	p := parse(t, whole)
	require.Equal(t, []string{"llama-3-70b", "nomic", "qwen"}, p.Models())
	require.Equal(t, &Model{
		Aliases: []string{"llama", "gpt-4o-mini"}, MaxInflight: 16, AdmitBudgetTokens: 262144,
		Steps: []Step{
			{Name: "local", Match: Match{Engine: "vllm", Region: "eu", Labels: map[string]string{"gpu": "h100"}}, MaxTries: 3},
			{Name: "any"},
		},
	}, p.Model("llama-3-70b"))
	require.Equal(t, &Model{}, p.Model("qwen"))
	require.Nil(t, p.Model("llama"), "an alias is no model")
	require.Nil(t, p.Model(""))
}

func TestResolve(t *testing.T) {
	t.Parallel()
	p := parse(t, whole)
	for name, want := range map[string]string{
		"llama": "llama-3-70b", "gpt-4o-mini": "llama-3-70b", "llama-3-70b": "llama-3-70b",
		"text embedding": "nomic", "42": "nomic",
		"Llama": "Llama", "llama ": "llama ", "unknown": "unknown", "": "",
	} {
		require.Equal(t, want, p.Resolve(name), name)
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	p := parse(t, "models: {a: {destination: route}, b: {destination: replica}, c: {}}")
	var none *Policy
	for _, usual := range []Destination{Replica, Route} {
		require.Equal(t, Route, p.Destination("a", usual))
		require.Equal(t, Replica, p.Destination("b", usual))
		require.Equal(t, usual, p.Destination("c", usual), "the policy does not say")
		require.Equal(t, usual, p.Destination("d", usual), "it has no policy")
		require.Equal(t, usual, none.Destination("a", usual), "there is no file")
	}
}

func TestUses(t *testing.T) {
	t.Parallel()
	p := parse(t, "models: {a: {destination: route}, b: {destination: replica}, c: {}}")
	var none *Policy
	require.True(t, p.Uses(Route, Replica))
	require.False(t, p.Uses(Endpoint, Replica))
	require.True(t, p.Uses(Endpoint, Endpoint))
	require.True(t, none.Uses(Endpoint, Endpoint))
	require.False(t, none.Uses(Route, Replica))
}

func TestFits(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"gpu": "h100", "rack": "7"}
	for name, tt := range map[string]struct {
		match Match
		want  bool
	}{
		"nothing asked":       {Match{}, true},
		"all that is there":   {Match{Engine: "vllm", Region: "eu", Labels: labels}, true},
		"one label":           {Match{Labels: map[string]string{"gpu": "h100"}}, true},
		"another engine":      {Match{Engine: "sglang", Region: "eu"}, false},
		"another region":      {Match{Engine: "vllm", Region: "us"}, false},
		"another value":       {Match{Labels: map[string]string{"gpu": "h100", "rack": "8"}}, false},
		"a label that is not": {Match{Labels: map[string]string{"zone": "a"}}, false},
	} {
		require.Equal(t, tt.want, tt.match.Fits("vllm", "eu", labels), name)
	}
}

func TestWithoutAFileNothingHasAnAlias(t *testing.T) {
	t.Parallel()
	var p *Policy
	require.Equal(t, "llama", p.Resolve("llama"))
	require.Nil(t, p.Model("llama"))
	require.Empty(t, p.Models())
}

// TestResolveAllocatesNothing runs alone: allocations are counted for the process.
func TestResolveAllocatesNothing(t *testing.T) {
	p := parse(t, whole)
	body := "gpt-4o-mini and more"
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if p.Resolve(body[:11]) != "llama-3-70b" || p.Resolve(body) != body {
			t.Error("resolved wrongly")
		}
	}))
}

func BenchmarkResolve(b *testing.B) {
	b.ReportAllocs()
	p, err := Parse([]byte(whole))
	require.NoError(b, err)
	for b.Loop() {
		if p.Resolve("gpt-4o-mini") != "llama-3-70b" {
			b.Fatal("resolved wrongly")
		}
	}
}

func TestAFileLargerThanTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte("models: {}\n" + strings.Repeat("# a comment\n", MaxBytes/12)))
	require.ErrorContains(t, err, "must have at most 1048576 bytes")
}
