// SPDX-License-Identifier: Apache-2.0

package body

import (
	"errors"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Coding is a Content-Encoding that can be read.
type Coding uint8

// The codings.
const (
	Identity Coding = iota
	gzipCoding
	zstdCoding
	brotliCoding
	UnknownCoding
)

// ParseCoding returns the coding that a Content-Encoding names.
func ParseCoding(contentEncoding string) Coding {
	switch strings.ToLower(strings.TrimSpace(contentEncoding)) {
	case "", "identity":
		return Identity
	case "gzip", "x-gzip":
		return gzipCoding
	case "zstd":
		return zstdCoding
	case "br":
		return brotliCoding
	default:
		return UnknownCoding
	}
}

// errDecodedTooLarge means that a body is over the limit when decoded.
var errDecodedTooLarge = errors.New("the decoded body is too large")

// limited reads at most left bytes from r. If there are more, Read returns
// errDecodedTooLarge, where io.LimitReader would return EOF.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, errDecodedTooLarge
	}
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, errDecodedTooLarge
	}
	return n, err
}

// zstdWindow is the window size that RFC 8878 wants every decoder to support. The usual
// tools use it from level 19 up.
const zstdWindow = 8 << 20

// memory returns how much memory a decoder may take, apart from the decoded bytes. Most of
// it is the window, whose size the sender chooses. Brotli's has at most 16 MiB, and while it
// grows, the one of half the size exists too.
func (c Coding) memory(limit int64) int64 {
	const other = 512 << 10
	switch c {
	case gzipCoding:
		return other
	case zstdCoding:
		return max(limit, zstdWindow) + other
	case brotliCoding:
		return 24<<20 + other
	default:
		return 0
	}
}

// Extra returns how much memory reading the fields of a body may take, apart from the body
// itself: the decoder's, and that of a decoded body of limit bytes.
func (c Coding) Extra(limit int64) int64 {
	if c == Identity {
		return 0
	}
	return c.memory(limit) + limit
}

// decode returns a reader of a decoded body, of at most limit bytes.
func decode(c Coding, r io.Reader, limit int64) (io.Reader, error) {
	plain, err := newDecoder(c, r, uint64(max(limit, zstdWindow)))
	if err != nil {
		return nil, err
	}
	return &limited{r: plain, left: limit}, nil
}

// newDecoder returns a decoder; window limits the window of zstd. No decoder needs to be
// closed: zstd's has no goroutines with a concurrency of 1.
func newDecoder(c Coding, r io.Reader, window uint64) (io.Reader, error) {
	switch c {
	case gzipCoding:
		return gzip.NewReader(r)
	case zstdCoding:
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(window))
	case brotliCoding:
		return brotli.NewReader(r), nil
	default:
		return r, nil
	}
}
