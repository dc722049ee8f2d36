// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// beside is an agent whose engine is a fake over real HTTP.
func beside(t *testing.T, f *fake, edit func(*Config)) *agent {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	cfg := newNetwork(t).config()
	cfg.BackendURL, cfg.HTTPClient, cfg.Models, cfg.Kinds = server.URL, nil, nil, nil
	edit(&cfg)
	require.NoError(t, cfg.Validate())
	a, err := newAgent(t.Context(), cfg.withDefaults())
	require.NoError(t, err)
	return a
}

func as(engine string) func(*Config) { return func(c *Config) { c.Engine = engine } }

func TestEachEngineIsHealthyAndNamesItsModels(t *testing.T) {
	t.Parallel()
	want := map[string]struct{ models, kinds []string }{
		VLLM:     {[]string{"llama", "sql-lora"}, []string{"chat"}},
		SGLang:   {[]string{"llama"}, []string{"chat"}},
		Ollama:   {[]string{"llama"}, []string{"chat"}},
		LlamaCpp: {[]string{"llama"}, []string{"chat"}},
		Infinity: {[]string{"bge"}, []string{"embedding"}},
		TEI:      {[]string{"thenlper/gte-base"}, []string{"embedding"}},
		Custom:   {[]string{"llama"}, []string{"chat"}},
	}
	require.Len(t, want, len(engines))
	for engine, w := range want {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			a := beside(t, newFake(engine), as(engine))
			require.NoError(t, a.health.check(t.Context()))
			require.NoError(t, a.discover(t.Context()))
			hello := a.core.open(&session{notify: make(chan struct{}, 1)}).GetHello()
			require.Equal(t, w.models, hello.GetModels())
			require.Equal(t, w.kinds, hello.GetKinds())
		})
	}
}

func TestModelsAreChosenByTheirKinds(t *testing.T) {
	t.Parallel()
	chat, embed, rerank := []target.Kind{target.Chat}, []target.Kind{target.Embedding}, []target.Kind{target.Rerank}
	cases := map[string]struct {
		offers []offer
		wish   []target.Kind
		models []string
		kinds  []target.Kind
	}{
		"none":                   {nil, nil, nil, embed},
		"the usual kind":         {[]offer{{"r", rerank}, {"e", embed}}, nil, []string{"e"}, embed},
		"no model has the usual": {[]offer{{"r", rerank}, {"s", rerank}, {"c", chat}}, nil, []string{"r", "s"}, rerank},
		"the kind wished for":    {[]offer{{"r", rerank}, {"e", embed}}, rerank, []string{"r"}, rerank},
		"two kinds wished for":   {[]offer{{"r", rerank}, {"e", embed}}, append(rerank, embed...), []string{"r", "e"}, append(rerank, embed...)},
		"kinds not told":         {[]offer{{"a", nil}, {"b", nil}}, rerank, []string{"a", "b"}, rerank},
		"a classifier":           {[]offer{{"a", []target.Kind{}}}, nil, nil, []target.Kind{}},
		"names that cannot be":   {[]offer{{"", nil}, {"a\n", nil}, {"b", nil}, {"b", nil}}, nil, []string{"b"}, embed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			models, kinds := choose(tc.offers, tc.wish, target.Embedding)
			require.Equal(t, tc.models, models)
			require.Equal(t, tc.kinds, kinds)
		})
	}
	var many []offer
	for _, name := range manyNames(protocol.MaxModels + 1) {
		many = append(many, offer{model: name})
	}
	models, _ := choose(many, nil, target.Chat)
	require.Len(t, models, protocol.MaxModels)
}

func TestRerankerOfTEIIsRegisteredAsOne(t *testing.T) {
	t.Parallel()
	f := &fake{get: map[string]string{"/info": `{"model_id":"bge-reranker","model_type":{"reranker":{"id2label":{"0":"LABEL_0"},"label2id":{"LABEL_0":0}}}}`}}
	a := beside(t, f, as(TEI))
	require.NoError(t, a.discover(t.Context()))
	require.Equal(t, []string{"rerank"}, a.cfg.Kinds)
}

func TestInfinityBelowAPrefixNamesItsModels(t *testing.T) {
	t.Parallel()
	f := &fake{get: map[string]string{"/v1/models": answers[Infinity]["/models"]}}
	a := beside(t, f, func(c *Config) { c.Engine, c.Kinds = Infinity, []string{"reranker"} })
	require.NoError(t, a.discover(t.Context()))
	require.Equal(t, []string{"ranker"}, a.cfg.Models)
	require.EqualValues(t, 2, *a.askSignals(t.Context(), engines[Infinity].signals).waiting)
}

func TestDiscoverySaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ models, want string }{
		"no such path":     {"", `/v1/models answers 404 Not Found`},
		"no JSON":          {"<html>", "reading /v1/models"},
		"no model":         {`{"data":[]}`, "the engine has none that fits: name them with --model"},
		"no name that can": {`{"data":[{"id":""}]}`, "the engine has none that fits: name them with --model"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{get: map[string]string{}}
			if tc.models != "" {
				f.get["/v1/models"] = tc.models
			}
			require.ErrorContains(t, beside(t, f, as(VLLM)).discover(t.Context()), tc.want)
		})
	}
}

func FuzzWhatAnEngineTells(f *testing.F) {
	for _, paths := range answers {
		for _, text := range paths {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, e := range engines {
			for _, l := range e.lists {
				offers, _ := l.parse(text)
				models, _ := choose(offers, nil, e.kinds[0])
				require.LessOrEqual(t, len(models), protocol.MaxModels)
			}
			for _, src := range e.signals {
				if s, err := src.parse(text); err == nil && s.kvUse != nil {
					require.True(t, *s.kvUse >= 0 && *s.kvUse <= 1)
				}
			}
		}
	})
}

// told names the signals that are there.
func (s signals) told() string {
	var words []string
	for word, there := range map[string]bool{"1 running": s.running != nil, "2 waiting": s.waiting != nil, "3 KV use": s.kvUse != nil} {
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
// fakes really tell.
func TestTheEnginesAreInTheDocs(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| engine | health | models | capabilities | warm-up | signals |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(engines)) {
		e := engines[name]
		words := map[target.Kind]string{target.Chat: "llm", target.Embedding: "embedding", target.Rerank: "reranker"}
		var lists, kinds, tells []string
		for _, l := range e.lists {
			lists = append(lists, "`"+l.path+"`")
		}
		for i, k := range e.kinds {
			word := words[k]
			if i == 0 {
				word = "**" + word + "**"
			}
			kinds = append(kinds, word)
		}
		for _, src := range e.signals {
			text, ok := answers[name][src.path]
			if !ok {
				text = answers[name][strings.TrimPrefix(src.path, "/v1")]
			}
			s, err := src.parse([]byte(text))
			require.NoError(t, err)
			tells = append(tells, "`"+src.path+"`: "+s.told())
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s | %s | %s | %s |\n", name, e.health, strings.Join(lists, ", else "),
			strings.Join(kinds, ", "), map[bool]string{true: "yes", false: "no"}[e.warmup], cmp.Or(strings.Join(tells, "; else "), "none"))
	}
	text, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "<!-- engines: begin -->\n")
	got, _, _ := strings.Cut(rest, "<!-- engines: end -->\n")
	require.Equal(t, table.String(), got)
}
