// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines/enginestest"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

func FuzzWhatAnEngineTells(f *testing.F) {
	for _, paths := range enginestest.Answers {
		for _, text := range paths {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, e := range table {
			for _, l := range e.models {
				offers, _ := l.parse(text)
				models, _ := e.Choose(offers, nil)
				require.LessOrEqual(t, len(models), protocol.MaxModels)
			}
			for _, src := range e.signals {
				if s, err := src.parse(text); err == nil && s.KVUse != nil {
					require.True(t, *s.KVUse >= 0 && *s.KVUse <= 1)
				}
			}
		}
	})
}

// told names the signals that are there.
func (s Signals) told() string {
	var words []string
	for word, there := range map[string]bool{"1 running": s.Running != nil, "2 waiting": s.Waiting != nil, "3 KV use": s.KVUse != nil} {
		if there {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	for i, w := range words {
		words[i] = w[2:]
	}
	return strings.Join(words, ", ")
}

// TestTheEnginesAreInTheDocs makes the table of what is known, and of what the
// fakes really report.
func TestTheEnginesAreInTheDocs(t *testing.T) {
	t.Parallel()
	var doc strings.Builder
	doc.WriteString("| engine | health | models | capabilities | warm-up | signals |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(table)) {
		e := table[name]
		words := map[target.Kind]string{target.Chat: "llm", target.Embedding: "embedding", target.Rerank: "reranker"}
		var lists, kinds, tells []string
		for _, l := range e.models {
			lists = append(lists, "`"+l.path+"`")
		}
		for i, k := range e.Kinds {
			word := words[k]
			if i == 0 {
				word = "**" + word + "**"
			}
			kinds = append(kinds, word)
		}
		for _, src := range e.signals {
			text, ok := enginestest.Answers[name][src.path]
			if !ok {
				text = enginestest.Answers[name][strings.TrimPrefix(src.path, "/v1")]
			}
			s, err := src.parse([]byte(text))
			require.NoError(t, err)
			tells = append(tells, "`"+src.path+"`: "+s.told())
		}
		fmt.Fprintf(&doc, "| `%s` | `%s` | %s | %s | %s | %s |\n", name, e.Health, strings.Join(lists, ", else "),
			strings.Join(kinds, ", "), map[bool]string{true: "yes", false: "no"}[e.Warmup], cmp.Or(strings.Join(tells, "; else "), "none"))
	}
	text, err := os.ReadFile("../../../docs/configuration.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "<!-- engines: begin -->\n")
	got, _, _ := strings.Cut(rest, "<!-- engines: end -->\n")
	require.Equal(t, doc.String(), got)
}
