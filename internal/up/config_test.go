// SPDX-License-Identifier: Apache-2.0

package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEngineDecidesWhatAModelIsFor(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		yaml string
		want []string // kinds
		err  string
	}{
		"no engine":          {"", []string{"chat"}, ""},
		"usual kind":         {"engine: tei", []string{"embedding"}, ""},
		"possible kind":      {"engine: tei, kinds: [rerank]", []string{"rerank"}, ""},
		"impossible kind":    {"engine: ollama, kinds: [rerank]", nil, "models[0].kinds[0]: ollama has no rerank (line 1)"},
		"no such kind":       {"engine: ollama, kinds: [text]", nil, `models[0].kinds[0]: must be chat, embedding or rerank, is "text" (line 1)`},
		"agent's words":      {"kinds: [llm, chat, reranker]", []string{"chat", "rerank"}, ""},
		"no such engine":     {"engine: gpt", nil, `models[0].engine: "gpt" is not known: use custom, infinity, llamacpp, ollama, sglang, tei, vllm (line 1)`},
		"warm-up":            {"engine: vllm, warmup: true", []string{"chat"}, ""},
		"impossible warm-up": {"engine: tei, warmup: true", nil, "models[0].warmup: is a chat completion: it needs the kind chat (line 1)"},
		"no warm-up":         {"engine: tei, warmup: false", []string{"embedding"}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := parse([]byte("models: [{name: m, exec: \"sh {port}\", " + tc.yaml + "}]"))
			if tc.err != "" {
				require.EqualError(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, f.Models[0].Kinds)
		})
	}
}

func TestPythonIsFilledIn(t *testing.T) {
	m := Model{Exec: []string{"{python}", "--port={port}"}, Env: []string{"PORT={port}"}}
	t.Setenv("HOLDGATE_PYTHON", "/opt/python")
	require.Equal(t, []string{"/opt/python", "--port={port}"}, m.command(), "the agent fills in the port")
	require.Equal(t, []string{"PORT={port}"}, m.Env)
	t.Setenv("HOLDGATE_PYTHON", "")
	require.Equal(t, "python3", m.command()[0])
}

func TestProgramIsLookedForWhereItRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "models: [{name: m, dir: " + dir + `, exec: "./run {port}"}]`
	_, err := parse([]byte(text))
	require.ErrorContains(t, err, `"./run" is not a program here`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run"), nil, 0o700))
	_, err = parse([]byte(text))
	require.NoError(t, err)
}
