// SPDX-License-Identifier: Apache-2.0

package up

import (
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
		"no such kind":       {"engine: ollama, kinds: [llm]", nil, `models[0].kinds[0]: must be chat, embedding or rerank, is "llm" (line 1)`},
		"no such engine":     {"engine: gpt", nil, `models[0].engine: "gpt" is not known: use custom, infinity, llamacpp, ollama, sglang, tei, vllm (line 1)`},
		"warm-up":            {"engine: vllm, warmup: true", []string{"chat"}, ""},
		"impossible warm-up": {"engine: tei, warmup: true", nil, "models[0].warmup: is a chat completion: it needs the kind chat (line 1)"},
		"no warm-up":         {"engine: tei, warmup: false", []string{"embedding"}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := parse([]byte("models: [{name: m, exec: sh, " + tc.yaml + "}]"))
			if tc.err != "" {
				require.EqualError(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, f.Models[0].Kinds)
		})
	}
}
