// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/sitemap"
)

// FuzzFields compares with the reader that most Go servers use, where both accept.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m"}`,
		`{"model":"m","stream":true,"max_tokens":12,"max_completion_tokens":null}`,
		`{"mod\u0065l":"\u00e9\ud83d\ude00","messages":[{"role":"user","content":"x"}]}`,
		`{"model":"a","model":"b"}`,
		`{"MODEL":"a","a":{"model":1}}`,
		`{"model":1e5,"stream":"x"}`,
		"{\"model\":\"\xff\"}",
		`[1,2,{"model":"m"}] `,
		`{"model":"m"} x`,
		``,
	} {
		f.Add([]byte(seed), uint16(1))
		f.Add([]byte(seed), uint16(64))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint16) {
		got, err := bodyOf(data, len(data)+1).readFields(sitemap.Chat, identity, testLimit)
		cut, cutErr := bodyOf(data, 1+int(size)).readFields(sitemap.Chat, identity, testLimit)
		require.Equal(t, err, cutErr, "a cut in pieces reads the same")
		if err != nil {
			var r *Refusal
			require.ErrorAs(t, err, &r)
			r.body(OpenAI)
			return
		}
		require.Equal(t, got, cut)
		members := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal(data, &members), "what is accepted is a JSON object")
		var want struct {
			model  string
			stream *bool
			tokens *float64
			more   *float64
		}
		for name, into := range map[string]any{
			"model": &want.model, "stream": &want.stream, "max_tokens": &want.tokens, "max_completion_tokens": &want.more,
		} {
			if raw, ok := members[name]; ok {
				require.NoError(t, json.Unmarshal(raw, into), name)
			}
		}
		require.NotEmpty(t, got.Model)
		require.Equal(t, want.model, got.Model)
		require.Equal(t, want.stream != nil && *want.stream, got.Stream)
		require.Equal(t, countOf(want.tokens), got.MaxTokens)
		require.Equal(t, countOf(want.more), got.MaxCompletionTokens)
	})
}

func countOf(n *float64) int64 {
	if n == nil {
		return -1
	}
	return int64(min(*n, 1<<53))
}
