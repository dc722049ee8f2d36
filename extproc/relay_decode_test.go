// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// flusher compresses piece by piece.
type flusher interface {
	io.WriteCloser
	Flush() error
}

// compressors are what an engine may compress with unasked, by what it says.
var compressors = map[string]struct {
	coding string
	begin  func(w io.Writer) flusher
}{
	"gzip":          {"gzip", func(w io.Writer) flusher { return gzip.NewWriter(w) }},
	"x-gzip":        {" X-GZip ", func(w io.Writer) flusher { return gzip.NewWriter(w) }},
	"deflate":       {"deflate", func(w io.Writer) flusher { return zlib.NewWriter(w) }},
	"bare deflate":  {"deflate", func(w io.Writer) flusher { z, _ := flate.NewWriter(w, 6); return z }},
	"brotli":        {"br", func(w io.Writer) flusher { return brotli.NewWriter(w) }},
	"zstd":          {"zstd", func(w io.Writer) flusher { z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return z }},
	"not, but says": {"identity", func(w io.Writer) flusher { return plainWriter{w} }},
}

type plainWriter struct{ io.Writer }

func (plainWriter) Flush() error { return nil }
func (plainWriter) Close() error { return nil }

// After keepalives an engine's encoded answer is decoded while it is read.
func TestACodedAnswerBehindKeepalivesIsDecoded(t *testing.T) {
	t.Parallel()
	for name, c := range compressors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(true))
				elapse(interval)
				r.slots.up(engineA, 1)
				body := r.engine.call(t, 1).respond(200, "Content-Encoding", c.coding)
				elapse(2 * interval) // its first byte is slow: keepalives go on
				z := c.begin(body)
				kept := keptAlive(comment, interval, 3*interval)
				require.Equal(t, kept, x.Events())
				got := ""
				for i := range 3 {
					event := fmt.Sprintf("data: %d\n\n", i)
					_, _ = io.WriteString(z, event)
					require.NoError(t, z.Flush())
					elapse(time.Second)
					got += event
					require.Equal(t, got, passedOn(x.Messages()[len(kept):]), "it is passed on as it comes")
				}
				_ = z.Close()
				_ = body.Close()
				require.ErrorIs(t, x.End(), io.EOF)
				require.Equal(t, got, passedOn(x.Messages()[len(kept):]))
			})
		})
	}
}

// passedOn is the body that streamed answers have together.
func passedOn(ms []*extprocv3.ProcessingResponse) string {
	text := ""
	for _, m := range ms {
		text += string(m.GetStreamedImmediateResponse().GetBodyResponse().GetBody())
	}
	return text
}

// An answer whose head is the engine's own says how it is coded.
func TestACodedAnswerWithItsOwnHeadIsPassedAsItIs(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, chat(false))
		r.slots.up(engineA, 1)
		body := r.engine.call(t, 1).respond(200, "Content-Encoding", "br")
		_, _ = io.WriteString(body, "as it is")
		_ = body.Close()
		x.RequireEnded(t, "0s head 200", `0s "as it is"`, `0s "" end`)
	})
}

func TestAnAnswerThatCannotBeDecodedEndsWithAnError(t *testing.T) {
	t.Parallel()
	const message = `{"error":{"code":"backend_error","message":"the engine's answer is compressed in a way that the router cannot read","source":"router"}}`
	for name, c := range map[string]struct{ coding, text string }{
		"unknown":      {"snappy", "text"},
		"one on other": {"gzip, br", "text"},
		"not gzip":     {"gzip", "this is no gzip at all"},
		"not zstd":     {"zstd", "this is no zstd at all"},
		"not brotli":   {"br", "this is no brotli at all"},
		"not deflate":  {"deflate", "\xff\xff\xff\xff\xff\xff"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for stream, want := range map[bool]string{true: "data: " + message + "\n\n", false: message} {
				bubble(t, func(r *rig) {
					t := r.t
					x := r.ask(t, chat(stream))
					elapse(interval)
					r.slots.up(engineA, 1)
					body := r.engine.call(t, 1).respond(200, "Content-Encoding", c.coding)
					go func() {
						_, _ = io.WriteString(body, c.text)
						_ = body.Close()
					}()
					require.ErrorIs(t, x.End(), io.EOF)
					got := x.Events()
					require.Equal(t, fmt.Sprintf("15s %q end", want), got[len(got)-1])
				})
			}
		})
	}
}

// What an answer is decoded to counts against the limit of an answer.
func TestADecodedAnswerIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range compressors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var coded bytes.Buffer
			z := c.begin(&coded)
			_, _ = z.Write(make([]byte, 4<<20))
			require.NoError(t, z.Close())
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, chat(false))
				elapse(interval)
				r.slots.up(engineA, 1)
				body := r.engine.call(t, 1).respond(200, "Content-Encoding", c.coding)
				go func() { _, _ = body.Write(coded.Bytes()) }()
				require.Equal(t, codes.Aborted, status.Code(x.End()))
				n := 0
				for _, m := range x.Messages() {
					n += len(m.GetStreamedImmediateResponse().GetBodyResponse().GetBody())
				}
				require.LessOrEqual(t, n, 1<<20+1, "the limit, and a keepalive")
			})
		})
	}
}

// An engine's coded error keeps its text.
func TestACodedErrorBehindKeepalivesKeepsItsText(t *testing.T) {
	t.Parallel()
	for name, c := range compressors {
		var coded strings.Builder
		z := c.begin(&coded)
		_, _ = io.WriteString(z, `{"error":{"message":"too long"}}`)
		require.NoError(t, z.Close())
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, chat(true))
			elapse(interval)
			r.slots.up(engineA, 1)
			body := r.engine.call(t, 1).respond(400, "Content-Encoding", c.coding)
			go func() {
				_, _ = io.WriteString(body, coded.String())
				_ = body.Close()
			}()
			require.ErrorIs(t, x.End(), io.EOF)
			require.Contains(t, strings.Join(x.Events(), " "), "too long", name)
		})
	}
}
