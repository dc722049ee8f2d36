// SPDX-License-Identifier: Apache-2.0

package body

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// usageOf reads an answer in pieces of a size.
func usageOf(answer string, events bool, size int) Usage {
	r := NewUsageReader(events)
	for rest := []byte(answer); len(rest) > 0; {
		n := min(size, len(rest))
		r.Add(rest[:n])
		rest = rest[n:]
	}
	return r.Usage()
}

var usageAnswers = map[string]struct {
	answer string
	events bool
	want   Usage
}{
	"chat": {
		`{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"\"usage\":{\"prompt_tokens\":99}"}}],` +
			`"usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46,"prompt_tokens_details":{"cached_tokens":4}}}`,
		false,
		Usage{12, 34, true},
	},
	"chat, usage first, in lines": {
		"{\n \"usage\" : {\n  \"prompt_tokens\" : 1 ,\n  \"completion_tokens\":2\n } , \"choices\": [ ] }\n", false, Usage{1, 2, true},
	},
	"embeddings": {
		`{"object":"list","data":[{"embedding":[0.1,-0.2]}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}`, false, Usage{8, 0, true},
	},
	"rerank": {`{"results":[{"index":0,"relevance_score":0.9}],"usage":{"total_tokens":21}}`, false, Usage{21, 0, true}},
	"responses": {
		`{"id":"r","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],` +
			`"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":3},"output_tokens":5,"total_tokens":15}}`, false, Usage{10, 5, true},
	},
	"messages": {
		`{"type":"message","content":[{"type":"text","text":"hi"}],` +
			`"usage":{"input_tokens":10,"cache_creation_input_tokens":2,"cache_read_input_tokens":100,"output_tokens":7}}`, false, Usage{112, 7, true},
	},
	"null":               {`{"choices":[],"usage":null}`, false, Usage{}},
	"none":               {`{"choices":[]}`, false, Usage{}},
	"no object":          {`[{"usage":{"prompt_tokens":1}}]`, false, Usage{}},
	"a list":             {`{"usage":[{"prompt_tokens":1}]}`, false, Usage{}},
	"deeper":             {`{"choices":[{"usage":{"prompt_tokens":1}}],"x":{"usage":{"prompt_tokens":1}}}`, false, Usage{}},
	"deeper than that":   {`{"response":{"x":{"usage":{"prompt_tokens":1}}}}`, false, Usage{}},
	"in a list":          {`{"message":[{"usage":{"prompt_tokens":1}}]}`, false, Usage{}},
	"a value":            {`{"x":"usage","y":{"prompt_tokens":1}}`, false, Usage{}},
	"a value that lures": {`{"x":"usage",  "y":[{"prompt_tokens":1}], "z":"usage"}`, false, Usage{}},
	"a longer name":      {`{"usage_of_the_gpu_":{"prompt_tokens":1},"usages":{"prompt_tokens":1}}`, false, Usage{}},
	"bad numbers": {
		`{"usage":{"prompt_tokens":-1,"completion_tokens":"5","input_tokens":1e3,"output_tokens":99999999999999,"total_tokens":1.5}}`, false, Usage{},
	},
	"cut":       {`{"usage":{"prompt_tokens":12,"completion_to`, false, Usage{}},
	"too large": {`{"usage":{"prompt_tokens":1,"x":"` + strings.Repeat("x", usageBytes) + `"}}`, false, Usage{}},
	"large": {
		`{"usage":{"prompt_tokens":1,"completion_tokens":1,"x":"` + strings.Repeat("x", usageBytes-100) + `"}}`, false, Usage{1, 1, true},
	},
	"twice": {`{"usage":{"prompt_tokens":1,"completion_tokens":2},"usage":{"completion_tokens":3}}`, false, Usage{1, 3, true}},
	"HTML":  {`<html>"usage":{"prompt_tokens":1}</html>`, false, Usage{}},
	"chat stream": {
		"data: {\"choices\":[{\"delta\":{\"content\":\"}{\\\"\"}}],\"usage\":null}\n\n: keep-alive\n\n" +
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n", true, Usage{3, 9, true},
	},
	"chat stream, with usage in each event": {
		"data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\ndata: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n" +
			"data: {\"usage\":null}\n\ndata: [DONE]\n\n", true, Usage{3, 2, true},
	},
	"chat stream, CRLF and no space": {
		"data:{\"usage\":\r\ndata:{\"prompt_tokens\":3,\r\ndata:\"completion_tokens\":9}}\r\n\r\ndata:[DONE]\r\n\r\n", true, Usage{3, 9, true},
	},
	"stream, CR alone": {"data: {\"usage\":\rdata: {\"prompt_tokens\":3}}\r\r", true, Usage{3, 0, true}},
	"stream, an event that is no JSON": {
		"data: {\"usage\": \"\n\nevent: data:\ndata: {\"usage\":{\"prompt_tokens\":3}}\n\n", true, Usage{3, 0, true},
	},
	"messages stream": {
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[],\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"usage\"}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true, Usage{30, 15, true},
	},
	"responses stream": {
		"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"usage\":null}}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"usage\":{\"input_tokens\":7}}],\"usage\":{\"input_tokens\":4,\"output_tokens\":6}}}\n\n",
		true,
		Usage{4, 6, true},
	},
	"not in data": {"event: {\"usage\":{\"prompt_tokens\":3}}\n: {\"usage\":{\"prompt_tokens\":3}}\n\n", true, Usage{}},
}

// The borders of the pieces do not matter.
func TestTheUsageIsReadWhateverThePieces(t *testing.T) {
	t.Parallel()
	for name, tt := range usageAnswers {
		for _, size := range []int{1, 2, 3, 7, 64, 1 << 20} {
			require.Equal(t, tt.want, usageOf(tt.answer, tt.events, size), "%s in pieces of %d", name, size)
		}
	}
}

// An answer without end keeps no memory.
func TestTheReaderOfUsageKeepsLittle(t *testing.T) {
	t.Parallel()
	for _, start := range []string{`{"usage":{"x":"`, `{"`, `{"usage":{"x":[`, strings.Repeat(`{"response":`, 9)} {
		r := NewUsageReader(false)
		r.Add([]byte(start))
		for range 1000 {
			r.Add([]byte(strings.Repeat("a[", 1000)))
		}
		require.LessOrEqual(t, cap(r.json.value)+cap(r.json.key), 2*usageBytes)
		require.Equal(t, Usage{}, r.Usage())
	}
}

// standardUsage reads the usage of an answer with the standard library. ok is false for an answer
// that it does not read, or whose names are not exactly what the reader looks for.
func standardUsage(answer []byte) (u Usage, ok bool) {
	var outer map[string]jsontext.Value
	if json.Unmarshal(answer, &outer) != nil || outer == nil {
		return Usage{}, false
	}
	var f usageFields
	read := func(v jsontext.Value) {
		if v.Kind() == '{' && len(v) <= usageBytes {
			f.read(v)
		}
	}
	// Members count in the order in which they come; only texts with one of them are compared.
	found := 0
	for name, v := range outer {
		switch name {
		case "usage":
			found++
			read(v)
		case "response", "message":
			var inner map[string]jsontext.Value
			if json.Unmarshal(v, &inner) == nil {
				if usage, has := inner["usage"]; has {
					found++
					read(usage)
				}
			}
		}
	}
	return f.usage(), found <= 1 && !strings.Contains(string(answer), `\u`)
}

// FuzzUsage compares the reader with the standard library, and pieces with the whole.
func FuzzUsage(f *testing.F) {
	for _, tt := range usageAnswers {
		f.Add([]byte(tt.answer), 1)
		f.Add([]byte(tt.answer), 5)
	}
	f.Fuzz(func(t *testing.T, answer []byte, size int) {
		size = max(1, min(size, 1<<20))
		for _, events := range []bool{false, true} {
			require.Equal(t, usageOf(string(answer), events, len(answer)+1), usageOf(string(answer), events, size))
		}
		if want, ok := standardUsage(answer); ok {
			require.Equal(t, want, usageOf(string(answer), false, size))
		}
	})
}

func BenchmarkUsage(b *testing.B) {
	event := []byte("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}]}\n\n")
	r := NewUsageReader(true)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		r.Add(event)
	}
}
