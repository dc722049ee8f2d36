// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/sitemap"
)

func skimmed(t *testing.T, text string, cut int) string {
	t.Helper()
	b := bodyOf([]byte(text), cut)
	out, err := io.ReadAll(&skimmer{chunks: b.chunks})
	require.NoError(t, err)
	return string(out)
}

func TestASkimmerKeepsTheBeginningOfLongRuns(t *testing.T) {
	t.Parallel()
	long, kept := strings.Repeat("a", 5000), strings.Repeat("a", keptRun)
	for text, want := range map[string]string{
		`{"a":"` + long + `"}`:                    `{"a":"` + kept + `"}`,
		`{"` + long + `":1}`:                      `{"` + kept + `":1}`,
		`"` + long + `\"` + long + `"` + long:     `"` + kept + `\"` + kept + `"` + long,
		`"` + long + "\n" + long + `é` + long:     `"` + kept + "\n" + kept + `é` + kept,
		`"\\"` + long:                             `"\\"` + long,
		`"\ud83d` + long + `\ude00"`:              `"\ud83d` + kept[:keptRun-4] + `\ude00"`,
		`[1,2,` + long + `]`:                      `[1,2,` + long + `]`,
		`"short"`:                                 `"short"`,
		``:                                        ``,
		`"` + strings.Repeat(`\n`, 20000) + long:  `"` + strings.Repeat(`\n`, 20000) + long, // it does not pay
		`{"a":"` + long + `","b":"` + long + `"}`: `{"a":"` + kept + `","b":"` + kept + `"}`,
	} {
		for _, cut := range []int{1, 7, 300, 64 << 10} {
			require.Equal(t, want, skimmed(t, text, cut), "%.40q cut at %d", text, cut)
		}
	}
}

// What is left is JSON if and only if the whole is, and says the same.
func TestASkimmedBodyReadsLikeTheWhole(t *testing.T) {
	t.Parallel()
	pieces := []string{
		strings.Repeat("a", 300), strings.Repeat("b ", 700), `"`, `\`, `\"`, `\n`, `\u00e9`, `\ud83d`, `\ude00`, "é", "\xff", "\x01", "{", "}", "[", "]", ":", ",",
		`"model"`, `"stream"`, `"m"`, "true", "null", " ", "1", `{"model":"m","x":"`, `"}`, strings.Repeat("max_completion_tokens", 40), strings.Repeat("c", 256),
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 30).Draw(t, "pieces"), "")
		if rapid.Bool().Draw(t, "likely") {
			text = `{"model":"m","x":"` + text + `"}`
		}
		b := body{chunks: []mem.Buffer{mem.SliceBuffer(text)}, size: int64(len(text))}
		whole, wholeErr := b.readFieldsOf(b.reader(), sitemap.Chat, testLimit)
		part, partErr := b.readFieldsOf(&skimmer{chunks: b.chunks}, sitemap.Chat, testLimit)
		if wholeErr == nil {
			require.NoError(t, partErr)
		}
		if partErr == nil && len(part.Model) < keptRun {
			require.NoError(t, wholeErr)
			require.Equal(t, whole, part)
		}
	})
}

func TestALongModelNameIsReadWhole(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", 1000)
	b := bodyOf([]byte(`{"x":"`+strings.Repeat("x", 2*skimFrom)+`","model":"`+name+`"}`), chunkSize)
	f, err := b.readFields(sitemap.Chat, identity, testLimit)
	require.NoError(t, err)
	require.Equal(t, name, f.Model)
}

func TestAnAliasInALongBody(t *testing.T) {
	t.Parallel()
	before, after := `{"x":"`+strings.Repeat("x", 2*skimFrom)+`","model":`, `,"y":"`+strings.Repeat("y", 2*skimFrom)+`"}`
	b := bodyOf([]byte(before+`"alias"`+after), chunkSize)
	f, err := b.readFields(sitemap.Chat, identity, testLimit)
	require.NoError(t, err)
	require.NoError(t, b.setModel(&f, "real", sitemap.Chat, identity, testLimit))
	require.Equal(t, before+`"real"`+after, string(b.settle()))
}

func TestPlainPrefix(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.OneOf(rapid.ByteRange(0x20, 0x7e), rapid.Byte()), 0, 60).Draw(t, "bytes")
		want := 0
		for want < len(b) && b[want] >= 0x20 && b[want] < 0x80 && b[want] != '"' && b[want] != '\\' {
			want++
		}
		require.Equal(t, want, plainPrefix(b))
	})
}
