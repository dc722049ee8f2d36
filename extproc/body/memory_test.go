// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/memtest"
	"github.com/holdgate/holdgate/internal/target"
)

// What decoding and reading a body allocates is within what it is charged with,
// whatever the body says.
func TestDecodingTakesNoMoreMemoryThanIsCharged(t *testing.T) { //nolint:paralleltest // it counts allocations
	const limit = 10 << 20
	texts := map[string]string{
		"objects":      `{"model":"m","x":[` + strings.Repeat(`{},`, 3<<20) + `{}]}`,
		"nested":       `{"model":"m","x":` + strings.Repeat(`[`, maxDepth-1) + strings.Repeat(`]`, maxDepth-1) + strings.Repeat(" ", 9<<20) + `}`,
		"a string":     `{"model":"m","x":"` + strings.Repeat(`a`, 9<<20) + `"}`,
		"escapes":      `{"model":"m","messages":"` + strings.Repeat(`\n\u00e9`, 1<<20) + `"}`,
		"a name":       `{"model":"m","` + strings.Repeat(`a`, 9<<20) + `":1}`,
		"a number":     `{"model":"m","max_tokens":` + strings.Repeat(`1`, 9<<20) + `}`,
		"spaces":       `{"model":` + strings.Repeat(` `, 9<<20) + `"m"}`,
		"a model":      `{"model":"` + strings.Repeat(`m`, 9<<20) + `"}`,
		"model a list": `{"model":[` + strings.Repeat(`1,`, 4<<20) + `1]}`,
		"not JSON":     `{"model":"m","x":"` + strings.Repeat(`a`, 9<<20),
		"too large":    `{"model":"m"}` + strings.Repeat(` `, 11<<20),
	}
	widest := map[string]func([]byte) []byte{
		"gzip": extproctest.Encoders["gzip"],
		"zstd": func(b []byte) []byte {
			var out bytes.Buffer
			w, err := zstd.NewWriter(&out, zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
			require.NoError(t, err)
			_, _ = w.Write(b[:1])
			_ = w.Flush() // the frame does not say how long it is
			_, _ = w.Write(b[1:])
			_ = w.Close()
			return out.Bytes()
		},
		"br": func(b []byte) []byte {
			var out bytes.Buffer
			w := brotli.NewWriterOptions(&out, brotli.WriterOptions{Quality: 5, LGWin: 24})
			_, _ = w.Write(b)
			_ = w.Close()
			return out.Bytes()
		},
	}
	for coded, encode := range widest {
		c := ParseCoding(coded)
		for name, text := range texts {
			b := bodyOf(encode([]byte(text)), chunkSize)
			took := memtest.Allocated(func() { _, _ = b.ReadFields(target.Chat, c, limit) })
			require.LessOrEqual(t, took, c.memory(limit), "%s of %s", name, coded)
		}
	}
	for name, text := range texts {
		b := bodyOf([]byte(text), chunkSize)
		took := memtest.Allocated(func() { _, _ = b.ReadFields(target.Chat, Identity, limit) })
		require.LessOrEqual(t, took, int64(512<<10), "%s, not compressed", name)
	}
}
