// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

// FuzzFields compares with the reader that most Go servers use, where both accept.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m"}`,
		`{"model":"m","stream":true,"max_tokens":12,"max_completion_tokens":null}`,
		`{"mod\u0065l":"\u00e9\ud83d\ude00","messages":[{"role":"user","content":"x"}]}`,
		`{"model":"a","model":"b"}`,
		`{"MODEL":"a","a":{"model":1}}`,
		"\ufeff" + `{"model":"a","max_tokens":-1,"max_output_tokens":7,"x":"\ud83d\u12"}`,
		`{"ſtream":true,"model":"m","mod\u212a":[-0.5e+3,null,false,{}]}`,
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
		got, err := bodyOf(data, len(data)+1).ReadFields(target.Chat, Identity, testLimit)
		cut, cutErr := bodyOf(data, 1+int(size)).ReadFields(target.Chat, Identity, testLimit)
		require.Equal(t, err, cutErr, "a cut in pieces reads the same")
		requireSyntax(t, data, err)
		if err != nil {
			return
		}
		require.Equal(t, got, cut)
		members := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal(bytes.TrimPrefix(data, []byte(byteOrderMark)), &members), "what is accepted is a JSON object")
		var want struct {
			model  string
			stream *bool
			tokens *float64
			more   *float64
			output *float64
		}
		for name, into := range map[string]any{
			"model": &want.model, "stream": &want.stream, "max_tokens": &want.tokens, "max_completion_tokens": &want.more, "max_output_tokens": &want.output,
		} {
			if raw, ok := members[name]; ok {
				require.NoError(t, json.Unmarshal(raw, into), name)
			}
		}
		require.NotEmpty(t, got.Model)
		require.Equal(t, want.model, got.Model)
		require.Equal(t, want.stream != nil && *want.stream, got.Stream)
		require.Equal(t, countOf(want.tokens), got.MaxTokens)
		require.Equal(t, max(countOf(want.more), countOf(want.output)), got.MaxCompletionTokens)
		folded := struct {
			Model string `json:"model"`
		}{}
		require.NoError(t, json.Unmarshal(bytes.TrimPrefix(data, []byte(byteOrderMark)), &folded))
		require.Equal(t, got.Model, folded.Model, "a reader that ignores the case of names finds the same model")
	})
}

func countOf(n *float64) int64 {
	if n == nil || *n < 0 {
		return -1
	}
	return int64(min(*n, 1<<53))
}
