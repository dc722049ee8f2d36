// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"testing"

	"github.com/klauspost/compress/gzip"
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
		var b body
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			b.add(mem.SliceBuffer(rest[:n]))
			rest = rest[n:]
		}
		f, err := b.readFields(target.Chat, identity, 1<<20)
		require.NoError(t, err)
		require.Equal(t, "alias", f.Model)
		require.NoError(t, b.setModel(&f, "the \"real\" one", identity, 1<<20))
		require.Equal(t, "the \"real\" one", f.Model)
		want := before + name + `"the \"real\" one"` + after
		require.Equal(t, want, string(b.settle()))
		require.Equal(t, int64(len(want)), b.size)
	})
}

func TestAnAliasInACompressedBodySendsItDecoded(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write([]byte(`{"model":"alias","x":1}`))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		x := r.ask(t, request(chatPath, packed.String(), "content-encoding", "gzip"))
		ms := x.messages()
		require.Len(t, ms, 2)
		require.Contains(t, ms[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders(), "content-encoding")
		require.Equal(t, `{"model":"m","x":1}`, string(ms[1].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()))
		x.reset()
		r.endAllNow()
		require.Equal(t, "m", r.only(t).Request.Model)
	})
}

func TestAnAliasOfASleepingModel(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, request(chatPath, `{"model":"alias"}`, "content-encoding", "identity"))
		r.slots.up(engineA, 1)
		call := r.engine.call(t, 1)
		require.Equal(t, `{"model":"m"}`, string(call.body))
		require.Equal(t, int64(len(call.body)), call.ContentLength)
		require.Empty(t, call.Header.Get("Content-Encoding"))
		_ = call.respond(200).Close()
		x.requireEnded(t, "0s head 200", `0s "" end`)
	})
}
