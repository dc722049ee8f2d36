// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

const testLimit = 1 << 20

// bodyOf is a body in pieces of at most size bytes.
func bodyOf(data []byte, size int) *Body {
	b := &Body{}
	for len(data) > 0 {
		n := min(size, len(data))
		b.Add(mem.SliceBuffer(data[:n:n]))
		data = data[n:]
	}
	return b
}

// read reads data as a chat body in one piece.
func read(data string) (Fields, error) {
	return bodyOf([]byte(data), max(len(data), 1)).ReadFields(target.Chat, Identity, testLimit)
}

// plain are the fields of a body with nothing but a model.
func plain(model string) Fields {
	return Fields{Model: model, MaxTokens: -1, MaxCompletionTokens: -1}
}

func requireRefusal(t require.TestingT, err error, status int) *refusal.Refusal {
	var r *refusal.Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, status, r.Status, r.Message)
	return r
}

func TestFieldsThatAreRead(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	for body, want := range map[string]Fields{
		`{"model":"m"}`:                                               plain("m"),
		"\t\r\n { \"model\" : \"m\" } \r\n":                           plain("m"),
		`{"mod\u0065l":"\u006d\n\"\u00e9\ud83d\ude00"}`:               plain("m\n\"é😀"),
		`{"model":"m","stream":true}`:                                 {Model: "m", Stream: true, MaxTokens: -1, MaxCompletionTokens: -1},
		`{"model":"m","stream":false}`:                                plain("m"),
		`{"model":"m","stream":null}`:                                 plain("m"),
		`{"model":"m","max_tokens":16}`:                               {Model: "m", MaxTokens: 16, MaxCompletionTokens: -1},
		`{"model":"m","max_tokens":0}`:                                {Model: "m", MaxTokens: 0, MaxCompletionTokens: -1},
		`{"model":"m","max_tokens":null}`:                             plain("m"),
		`{"model":"m","max_tokens":1e3,"max_completion_tokens":32.0}`: {Model: "m", MaxTokens: 1000, MaxCompletionTokens: 32},
		`{"model":"m","max_tokens":1e300}`:                            {Model: "m", MaxTokens: 1 << 53, MaxCompletionTokens: -1},
		// A negative count means that none is given, and a byte-order mark is skipped.
		`{"model":"m","max_tokens":-1,"max_completion_tokens":-1.5,"max_output_tokens":-1e999}`: plain("m"),
		"\ufeff" + `{"model":"m","max_tokens":-0}`:                                              {Model: "m", MaxTokens: 0, MaxCompletionTokens: -1},
		// So are halves of surrogate pairs, wherever a value is not read.
		`{"model":"m","user":"\ud83d","messages":[{"content":"cut \ude00\ud83d"},{"\ud800":1}]}`: plain("m"),
		// What lies deeper, and what is not read, is the engine's business.
		`{"a":{"model":1,"model":2,"stream":"x"},"messages":[{"model":3,"model":4}],"model":"m"}`: plain("m"),
		`{"messages":[],"messages":[],"model":"m"}`:                                               plain("m"),
		`{"x":` + deep + `,"model":"m"}`:                                                          plain("m"),
		`{"x":1e999999,"y":` + strings.Repeat("9", 5000) + `,"model":"m"}`:                        plain("m"),
		`{"model":"` + strings.Repeat("m", 70_000) + `"}`:                                         plain(strings.Repeat("m", 70_000)),
	} {
		got, err := read(body)
		require.NoError(t, err, "%.100s", body)
		require.Equal(t, want, got, "%.100s", body)
	}
}

func TestBodiesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, message string }{
		"empty":                      {"", "empty"},
		"only spaces":                {" \n ", "empty"},
		"no model":                   {`{"stream":true}`, "no model"},
		"nothing in it":              {`{}`, "no model"},
		"another case":               {`{"MODEL":"m"}`, "engines may take for model"},
		"repeated model":             {`{"model":"cheap","model":"gpu"}`, "more than one model"},
		"repeated with an escape":    {`{"model":"cheap","\u006dodel":"gpu"}`, "more than one model"},
		"repeated, the same":         {`{"model":"m","model":"m"}`, "more than one model"},
		"repeated stream":            {`{"model":"m","stream":true,"stream":true}`, "more than one stream"},
		"repeated max_tokens":        {`{"model":"m","max_tokens":1,"max_tokens":null}`, "more than one max_tokens"},
		"repeated completion tokens": {`{"model":"m","max_completion_tokens":1,"max_completion_tokens":1}`, "more than one max_completion_tokens"},
		"model null":                 {`{"model":null}`, "model"},
		"model number":               {`{"model":1}`, "model"},
		"model object":               {`{"model":{"id":"m"}}`, "model"},
		"model list":                 {`{"model":["m"]}`, "model"},
		"model empty":                {`{"model":""}`, "model"},
		"stream string":              {`{"model":"m","stream":"true"}`, "stream"},
		"stream number":              {`{"model":"m","stream":1}`, "stream"},
		"max_tokens string":          {`{"model":"m","max_tokens":"1"}`, "max_tokens"},
		"max_tokens too long":        {`{"model":"m","max_tokens":0.` + strings.Repeat("0", 2000) + `}`, "max_tokens"},
		"model too long":             {`{"model":"` + strings.Repeat("m", maxModel+1) + `"}`, "longer than"},
		"max_tokens too huge":        {`{"model":"m","max_tokens":1e999}`, "max_tokens"},
		"array":                      {`[{"model":"m"}]`, "must be a JSON object"},
		"string":                     {`"model"`, "must be a JSON object"},
		"null":                       {`null`, "must be a JSON object"},
		"number":                     {`12`, "must be a JSON object"},
		"truncated":                  {`{"model":"m"`, "not valid JSON"},
		"truncated in a name":        {`{"mod`, "not valid JSON"},
		"truncated after a name":     {`{"model"`, "not valid JSON"},
		"truncated in a value":       {`{"model":"m`, "not valid JSON"},
		"truncated deeper":           {`{"model":"m","a":[{"b":`, "not valid JSON"},
		"trailing value":             {`{"model":"m"} {"model":"n"}`, "data after"},
		"trailing brace":             {`{"model":"m"}}`, "not valid JSON"},
		"trailing text":              {`{"model":"m"}x`, "not valid JSON"},
		"trailing NUL":               {"{\"model\":\"m\"}\x00", "not valid JSON"},
		"trailing comma":             {`{"model":"m",}`, "not valid JSON"},
		"comment":                    {`{"model":"m"/**/}`, "not valid JSON"},
		"single quotes":              {`{'model':'m'}`, "not valid JSON"},
		"a name without quotes":      {`{model:"m"}`, "not valid JSON"},
		"NaN":                        {`{"model":"m","x":NaN}`, "not valid JSON"},
		"two byte order marks":       {"\ufeff\ufeff" + `{"model":"m"}`, "not valid JSON"},
		"half a byte order mark":     {"\xef\xbb" + `{"model":"m"}`, "not valid JSON"},
		"a mark behind a space":      {" \ufeff" + `{"model":"m"}`, "not valid JSON"},
		"invalid UTF-8 in the model": {"{\"model\":\"a\xffb\"}", "not valid JSON: byte 11 is not UTF-8"},
		"invalid UTF-8 elsewhere":    {"{\"model\":\"m\",\"x\":\"\xc3\"}", "not valid JSON: byte 18 is not UTF-8"},
		"invalid UTF-8 in a name":    {"{\"mode\xff\":\"m\"}", "not valid JSON: byte 6 is not UTF-8"},
		"invalid UTF-8 in structure": {"{\"model\":\xff\"m\"}", "not valid JSON: byte 9 is not UTF-8"},
		"a surrogate in UTF-8":       {"{\"model\":\"m\",\"x\":\"\xed\xa0\x80\"}", "not valid JSON: byte 18 is not UTF-8"},
		"lone surrogate":             {`{"model":"\ud800"}`, "not valid JSON: model has half of a surrogate pair"},
		"lone surrogate in a name":   {`{"mod\ud800el":"m"}`, "not valid JSON: the name near byte 1 has half of a surrogate pair"},
		"control character":          {"{\"model\":\"a\nb\"}", "not valid JSON"},
		"nested too deep":            {`{"model":"m","x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, "not valid JSON"},
		"UTF-16":                     {"\xff\xfe{\x00}\x00", "not valid JSON: byte 0 is not UTF-8"},
		"a form":                     {"model=m&stream=true", "not valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{len(c.body) + 1, 7, 1} {
				_, err := bodyOf([]byte(c.body), size).ReadFields(target.Chat, Identity, testLimit)
				r := requireRefusal(t, err, http.StatusBadRequest)
				require.Equal(t, "request_invalid", r.Code)
				require.Contains(t, r.Message, c.message)
			}
		})
	}
}

// Only chat requests stream. In others a field of that name has no meaning.
func TestStreamIsReadForChatOnly(t *testing.T) {
	t.Parallel()
	for _, kind := range []target.Kind{target.Embedding, target.Rerank} {
		for _, value := range []string{`true`, `"yes"`, `[1]`, `true,"stream":false`} {
			b := bodyOf([]byte(`{"stream":`+value+`,"model":"m"}`), 1<<10)
			got, err := b.ReadFields(kind, Identity, testLimit)
			require.NoError(t, err, value)
			require.Equal(t, plain("m"), got)
		}
	}
}

// Every cut of a body in two and in single bytes reads the same.
func TestTheCutOfABodyDoesNotMatter(t *testing.T) {
	t.Parallel()
	data := []byte(`{"a":{"model":"x"},"mod\u0065l":"m\u00e9\ud83d\ude00é😀","stream":true,"max_tokens":12.5e1,"z":[1,-2.5e-7,null]}`)
	want, err := read(string(data))
	require.NoError(t, err)
	require.Equal(t, Fields{Model: "mé😀é😀", Stream: true, MaxTokens: 125, MaxCompletionTokens: -1}, want)
	for cut := 1; cut < len(data); cut++ {
		b := &Body{}
		b.Add(mem.SliceBuffer(data[:cut]))
		b.Add(mem.SliceBuffer(data[cut:]))
		got, err := b.ReadFields(target.Chat, Identity, testLimit)
		require.NoError(t, err, cut)
		require.Equal(t, want, got, cut)
		got, err = bodyOf(data, cut).ReadFields(target.Chat, Identity, testLimit)
		require.NoError(t, err, cut)
		require.Equal(t, want, got, cut)
	}
}

// A reader that is used again must have nothing of the body before.
func TestAReaderIsUsedAgainWithoutItsFormerBody(t *testing.T) {
	t.Parallel()
	for range 100 {
		got, err := read(`{"model":"first","stream":true,"max_tokens":5}`)
		require.NoError(t, err)
		require.True(t, got.Stream)
		_, err = read(`{"model":"broken","stream":`)
		require.Error(t, err)
		got, err = read(`{"model":"second"}`)
		require.NoError(t, err)
		require.Equal(t, plain("second"), got)
	}
}

func TestCompressedBodiesAreReadAsTheirText(t *testing.T) {
	t.Parallel()
	const limit = 10 << 20 // the default
	small := []byte(`{"model":"m","stream":true}`)
	large := []byte(`{"x":"` + strings.Repeat("word ", 200_000) + `","model":"m","stream":true}`)
	bomb := append(bytes.Clone(small), bytes.Repeat([]byte(" "), limit)...)
	invalid := []byte(`{"model":"m"`)
	for name, encode := range extproctest.Encoders {
		if name == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := ParseCoding(extproctest.CodingName(name))
			for _, text := range [][]byte{small, large} {
				data := encode(text)
				for _, size := range []int{len(data), 64 << 10, 1000, 1} {
					got, err := bodyOf(data, size).ReadFields(target.Chat, c, limit)
					require.NoError(t, err)
					require.Equal(t, Fields{Model: "m", Stream: true, MaxTokens: -1, MaxCompletionTokens: -1}, got)
				}
			}
			_, err := bodyOf(encode(bomb), chunkSize).ReadFields(target.Chat, c, limit)
			_ = requireRefusal(t, err, http.StatusRequestEntityTooLarge)
			_, err = bodyOf(encode(bomb[:limit]), chunkSize).ReadFields(target.Chat, c, limit)
			require.NoError(t, err, "exactly the limit")
			_, err = bodyOf(encode(invalid), chunkSize).ReadFields(target.Chat, c, limit)
			require.Contains(t, requireRefusal(t, err, http.StatusBadRequest).Message, "not valid JSON")
			_, err = bodyOf(encode(nil), chunkSize).ReadFields(target.Chat, c, limit)
			require.Contains(t, requireRefusal(t, err, http.StatusBadRequest).Message, "empty")
		})
	}
}

func TestDamagedCompressedBodiesAreRefused(t *testing.T) {
	t.Parallel()
	text := []byte(`{"x":"` + strings.Repeat("some words and 1 2 3 ", 400) + `","model":"m"}`)
	for name, encode := range extproctest.Encoders {
		if name == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := ParseCoding(extproctest.CodingName(name))
			data := encode(text)
			for cut := range data {
				_, err := bodyOf(data[:cut], chunkSize).ReadFields(target.Chat, c, testLimit)
				_ = requireRefusal(t, err, http.StatusBadRequest)
			}
			_, err := bodyOf(text, chunkSize).ReadFields(target.Chat, c, testLimit)
			require.Contains(t, requireRefusal(t, err, http.StatusBadRequest).Message, "content-encoding", "not compressed at all")
			for i := range data {
				flipped := bytes.Clone(data)
				flipped[i] ^= 0x10
				// Some bits do not matter; none may lead to more than a refusal.
				if _, err := bodyOf(flipped, chunkSize).ReadFields(target.Chat, c, testLimit); err != nil {
					var r *refusal.Refusal
					require.ErrorAs(t, err, &r)
				}
			}
		})
	}
}

func TestContentEncodingsThatCanBeRead(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Coding{
		"": Identity, "identity": Identity, "gzip": gzipCoding, "x-gzip": gzipCoding, " GZip ": gzipCoding,
		"zstd": zstdCoding, "br": brotliCoding, "deflate": UnknownCoding, "gzip, gzip": UnknownCoding, "compress": UnknownCoding, "x": UnknownCoding,
	} {
		require.Equal(t, want, ParseCoding(name), name)
	}
}

func TestSettleKeepsTheBytes(t *testing.T) {
	t.Parallel()
	pool := &extproctest.CountingPool{}
	data := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	b := &Body{}
	for _, part := range pool.In(data, 13) {
		b.Add(part)
	}
	b.Add(mem.SliceBuffer(nil))
	copied := b.Settle()
	pool.RequireAllBack(t)
	require.Equal(t, data, copied)
	require.Equal(t, len(data), cap(copied))
	var again []byte
	for _, c := range b.chunks {
		require.LessOrEqual(t, c.Len(), chunkSize)
		again = append(again, c.ReadOnlyData()...)
	}
	require.Equal(t, data, again)
	require.Equal(t, data, b.Settle(), "a second wait of the same request")
	b.Free()
	b.Free()
}

func TestReadingASmallBodyHardlyAllocates(t *testing.T) { //nolint:paralleltest // it counts allocations
	b := bodyOf(extproctest.ChatBody(1<<10), chunkSize)
	n := testing.AllocsPerRun(500, func() {
		_, err := b.ReadFields(target.Chat, Identity, testLimit)
		require.NoError(t, err)
	})
	require.LessOrEqual(t, n, 6.0, "allocations")
}

func BenchmarkReadFields(b *testing.B) {
	for _, n := range []int{1 << 10, 64 << 10, 1 << 20} {
		data := extproctest.ChatBody(n)
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) {
			body := bodyOf(data, chunkSize)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := body.ReadFields(target.Chat, Identity, 10<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, name := range []string{"gzip", "zstd", "br"} {
		data := extproctest.Encoders[name](extproctest.ChatBody(64 << 10))
		b.Run("64KiB "+name, func(b *testing.B) {
			body := bodyOf(data, chunkSize)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := body.ReadFields(target.Chat, ParseCoding(name), 10<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
