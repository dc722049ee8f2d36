// SPDX-License-Identifier: Apache-2.0

package body

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/target"
)

// Only the bytes of the value change, wherever they stand and however the body is
// cut into chunks.
func TestAnAliasChangesOnlyTheModelsValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.SampledFrom([]string{"{", "\ufeff{", "{ \"a\" : [1, {\"model\":\"no\"}] ,\n", "\n\t{\"stream\":true,\"é\":\"\\u00e9\","}).Draw(t, "before")
		name := rapid.SampledFrom([]string{`"model":`, `"model" : `, `"mod\u0065l":`}).Draw(t, "name")
		value := rapid.SampledFrom([]string{`"alias"`, `"\u0061lias"`}).Draw(t, "value")
		after := rapid.SampledFrom([]string{"}", " , \"x\":1e3}\n", `,"messages":[]}`}).Draw(t, "after")
		text := before + name + value + after
		var b Body
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			b.Add(mem.SliceBuffer(rest[:n]))
			rest = rest[n:]
		}
		f, err := b.ReadFields(target.Chat, Identity, 1<<20)
		require.NoError(t, err)
		require.Equal(t, "alias", f.Model)
		require.NoError(t, b.SetModel(&f, "the \"real\" one", Identity, 1<<20))
		require.Equal(t, "the \"real\" one", f.Model)
		want := before + name + `"the \"real\" one"` + after
		require.Equal(t, want, string(b.Settle()))
		require.Equal(t, int64(len(want)), b.size)
	})
}
