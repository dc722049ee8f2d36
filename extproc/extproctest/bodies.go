// SPDX-License-Identifier: Apache-2.0

package extproctest

import (
	"bytes"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Encoders encode a body, by the names of their codings.
var Encoders = map[string]func([]byte) []byte{
	"": func(b []byte) []byte { return b },
	"gzip": func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(b)
		_ = w.Close()
		return out.Bytes()
	},
	"zstd": func(b []byte) []byte {
		w, _ := zstd.NewWriter(nil)
		return w.EncodeAll(b, nil)
	},
	"zstd, as a stream": func(b []byte) []byte {
		var out bytes.Buffer
		w, _ := zstd.NewWriter(&out, zstd.WithWindowSize(8<<20)) // as level 19 has it
		_, _ = w.Write(b)
		_ = w.Flush()
		_ = w.Close()
		return out.Bytes()
	},
	"br": func(b []byte) []byte {
		var out bytes.Buffer
		w := brotli.NewWriter(&out)
		_, _ = w.Write(b)
		_ = w.Close()
		return out.Bytes()
	},
}

// CodingName is the Content-Encoding of an encoder.
func CodingName(encoder string) string {
	name, _, _ := strings.Cut(encoder, ",")
	return name
}

// ChatBody is a request of about n bytes, with the model at the end.
func ChatBody(n int) []byte {
	message := `{"role":"user","content":"` + strings.Repeat("A few words, \\\"quoted\\\" and \\n broken. ", 5) + `"},`
	head, tail := `{"messages":[`, `{"role":"user","content":"x"}],"stream":true,"model":"llama-3-70b"}`
	return []byte(head + strings.Repeat(message, max(0, (n-len(head)-len(tail))/len(message))) + tail)
}
