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

// textsBelow returns texts of nearly limit bytes, and one that is longer.
func textsBelow(limit int) map[string]string {
	most := limit - limit/10
	return map[string]string{
		"objects":      `{"model":"m","x":[` + strings.Repeat(`{},`, most/3) + `{}]}`,
		"nested":       `{"model":"m","x":` + strings.Repeat(`[`, maxDepth-1) + strings.Repeat(`]`, maxDepth-1) + strings.Repeat(" ", most) + `}`,
		"a string":     `{"model":"m","x":"` + strings.Repeat(`a`, most) + `"}`,
		"escapes":      `{"model":"m","messages":"` + strings.Repeat(`\n\u00e9`, most/8) + `"}`,
		"a name":       `{"model":"m","` + strings.Repeat(`a`, most) + `":1}`,
		"a number":     `{"model":"m","max_tokens":` + strings.Repeat(`1`, most) + `}`,
		"spaces":       `{"model":` + strings.Repeat(` `, most) + `"m"}`,
		"a model":      `{"model":"` + strings.Repeat(`m`, most) + `"}`,
		"model a list": `{"model":[` + strings.Repeat(`1,`, most/2) + `1]}`,
		"not JSON":     `{"model":"m","x":"` + strings.Repeat(`a`, most),
		"too large":    `{"model":"m"}` + strings.Repeat(` `, limit+limit/10),
	}
}

// What decoding and reading a body allocates is within what it is charged with,
// whatever the body says. The texts are longer than the window of zstd, or than the 512 KiB
// that the others may take.
func TestDecodingTakesNoMoreMemoryThanIsCharged(t *testing.T) { //nolint:paralleltest // it counts allocations
	const wide, narrow = 9 << 20, 2 << 20
	texts := map[int]map[string]string{wide: textsBelow(wide), narrow: textsBelow(narrow)}
	for name, text := range texts[narrow] {
		b := bodyOf([]byte(text), chunkSize)
		took := memtest.Allocated(func() { _, _ = b.ReadFields(target.Chat, Identity, narrow) })
		require.LessOrEqual(t, took, int64(512<<10), "%s, not compressed", name)
	}
	for coded, limit := range map[string]int{"gzip": narrow, "zstd": wide, "br": wide} {
		c := ParseCoding(coded)
		for name, text := range texts[limit] {
			b := bodyOf(widest[coded]([]byte(text)), chunkSize)
			took := memtest.Allocated(func() { _, _ = b.ReadFields(target.Chat, c, int64(limit)) })
			require.LessOrEqual(t, took, c.memory(int64(limit)), "%s of %s", name, coded)
		}
	}
}

// widest encodes so that the decoder takes the most memory.
var widest = map[string]func([]byte) []byte{
	"gzip": extproctest.Encoders["gzip"],
	"zstd": func(b []byte) []byte {
		var out bytes.Buffer
		w, _ := zstd.NewWriter(&out, zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
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
