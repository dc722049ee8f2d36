// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/internal/target"
)

// requestOf is a request with a body in chunks of this size.
func requestOf(t require.TestingT, text string, chunk int) *Request {
	b := &body.Body{}
	for rest := text; rest != ""; {
		n := min(chunk, len(rest))
		b.Add(mem.SliceBuffer([]byte(rest[:n])))
		rest = rest[n:]
	}
	fields, err := b.ReadFields(target.Chat, body.Identity, 1<<30)
	require.NoError(t, err)
	return &Request{Fields: fields, TextTokens: b.TextTokens()}
}

func TestTheFootprintIsTextAndDeclaredOutput(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 320)
	media := strings.Repeat("A", 9000)
	for name, tt := range map[string]struct {
		body string
		want int64
	}{
		"a message":                    {`"messages": [{"role": "user", "content": "` + text + `"}]`, 100},
		"rounded up":                   {`"messages": [{"role": "user", "content": "1234"}]`, 2},
		"parts":                        {`"messages": [{"role": "user", "content": [{"type": "text", "text": "` + text + `"}]}]`, 100},
		"a system prompt":              {`"system": "` + text + `", "messages": []`, 100},
		"the declared output":          {`"messages": [], "max_tokens": 500`, 500},
		"the larger of two":            {`"messages": [], "max_tokens": 500, "max_completion_tokens": 700`, 700},
		"the output of responses":      {`"input": "` + text + `", "max_output_tokens": 40`, 140},
		"tools, every byte":            {`"tools": ["` + strings.Repeat("x", 315) + `"]`, 100},
		"an image":                     {`"messages": [{"content": [{"type": "image_url", "image_url": {"url": "` + media + `"}}]}]`, 0},
		"an image as one string":       {`"input": [{"content": [{"type": "input_image", "image_url": "` + media + `"}, {"text": "` + text + `"}]}]`, 100},
		"audio":                        {`"messages": [{"content": [{"input_audio": {"data": "` + media + `", "format": "wav"}}]}]`, 0},
		"an image of messages":         {`"messages": [{"content": [{"type": "image", "source": {"type": "base64", "data": "` + media + `"}}, {"text": "` + text + `"}]}]`, 100},
		"the member after one":         {`"messages": [{"content": [{"image_url": {"a": {"b": ["` + media + `"]}}, "text": "` + text + `"}]}]`, 100},
		"no text":                      {`"user": "` + text + `", "metadata": {"messages": "` + text + `"}`, 0},
		"names are no text":            {`"messages": [{"` + text + `": 1}]`, 1},
		"a prompt of tokens":           {`"prompt": [1, 22, -3, 4.5e+3]`, 4},
		"inputs":                       {`"input": ["` + text + `", "` + text + `"]`, 200},
		"a query with documents":       {`"query": "` + text + `", "documents": ["` + text + `", {"text": "` + text + `"}]`, 300},
		"escapes":                      {`"prompt": "` + strings.Repeat(`\n`, 32) + `"`, 10},
		"characters that are escaped":  {`"prompt": "` + strings.Repeat(`\u00e9`, 32) + `"`, 30},
		"characters of several bytes":  {`"prompt": "` + strings.Repeat("é", 16) + `"`, 10},
		"a quote and a colon in text":  {`"prompt": "\"messages\": {\\"`, 5},
		"a name that is escaped":       {`"prompt": [{"te\u0078t": "` + text + `"}]`, 100},
		"a first name that is escaped": {`"mess\u0061g\u0065s": [{"role": "user", "content": "` + text + `"}]`, 100},
		"escaped as far as can be":     {`"` + escaped("messages") + `": [{"` + escaped("image_url") + `": "` + media + `", "content": "` + text + `"}]`, 100},
		"a name with other letters":    {`"messagesé": "` + text + `"`, 0},
		"a name like one, but longer":  {`"messages_and_more_than_any_name_that_counts": "` + text + `"`, 0},
		"nothing":                      {`"messages": []`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := `{"model": "m", ` + tt.body + "}"
			for _, chunk := range []int{1, 3, 64, len(whole)} {
				require.Equal(t, tt.want, requestOf(t, whole, chunk).Footprint(), "chunks of %d", chunk)
			}
		})
	}
}

// escaped is a name of which every letter is escaped.
func escaped(name string) (all string) {
	for _, c := range name {
		all += fmt.Sprintf(`\u%04x`, c)
	}
	return all
}

func TestTheFootprintOfACompressedBodyIsThatOfItsText(t *testing.T) {
	t.Parallel()
	text := `{"model": "m", "prompt": "` + strings.Repeat("x", 3200) + `"}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	b := &body.Body{}
	b.Add(mem.SliceBuffer(packed.Bytes()))
	fields, err := b.ReadFields(target.Chat, body.ParseCoding("gzip"), 1<<20)
	require.NoError(t, err)
	require.EqualValues(t, 1000, (&Request{Fields: fields, TextTokens: b.TextTokens()}).Footprint())
}

// TestTheFootprintIsWhatAParserFinds makes bodies of messages with any text and
// compares with the sum of the strings that were put in.
func TestTheFootprintIsWhatAParserFinds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ascii := rapid.StringOf(rapid.RuneFrom([]rune("ab \"\\{}[]:,\n\t/é漢")))
		var content []any
		want := 0
		for i, s := range rapid.SliceOf(ascii).Draw(t, "texts") {
			if i%3 == 2 {
				content = append(content, map[string]any{"type": "image_url", "image_url": map[string]any{"url": s}})
				continue
			}
			want += len(s)
			content = append(content, map[string]any{"type": "text", "text": s})
		}
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": content}}}))
		r := requestOf(t, out.String(), rapid.IntRange(1, 50).Draw(t, "chunk"))
		require.EqualValues(t, (want*10+31)/32, r.Footprint(), "%d bytes", want)
	})
}
