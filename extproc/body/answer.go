// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zlib"
)

// ErrUndecodable means that the coding of an answer is unknown, or that its bytes are not
// valid in that coding.
var ErrUndecodable = errors.New("the engine's answer is compressed in a way that the router cannot read")

// DecodedAnswer returns the decoded body of an engine's answer. The router asks engines for
// identity coding, but some compress all the same.
func DecodedAnswer(resp *http.Response) io.ReadCloser {
	if !IsCoded(resp) {
		return resp.Body
	}
	return &decoder{Closer: resp.Body, coded: resp.Body, coding: codingOf(resp)}
}

// IsCoded reports whether an engine's answer is compressed.
func IsCoded(resp *http.Response) bool {
	coding := codingOf(resp)
	return coding != "" && coding != "identity"
}

// codingOf returns the coding of an engine's answer, in lower case.
func codingOf(resp *http.Response) string {
	return strings.ToLower(strings.TrimSpace(strings.Join(resp.Header.Values("Content-Encoding"), ",")))
}

// decoder decodes a body while it is read. The first Read makes the decoder, because making
// some of them reads the first bytes of the body.
type decoder struct {
	io.Closer
	coded  io.Reader
	coding string
	plain  io.Reader
}

func (d *decoder) Read(p []byte) (n int, err error) {
	if d.plain == nil {
		if d.plain, err = newAnswerDecoder(d.coding, d.coded); err != nil {
			return 0, undecodable(err)
		}
	}
	n, err = d.plain.Read(p)
	return n, undecodable(err)
}

// undecodable wraps an error of a decoder in ErrUndecodable. The end of an answer, also one
// that comes too early, is returned unchanged.
func undecodable(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUndecodable, err)
}

// newAnswerDecoder returns a decoder for a Content-Encoding: those of requests, or deflate.
func newAnswerDecoder(contentEncoding string, r io.Reader) (io.Reader, error) {
	if contentEncoding == "deflate" {
		return newInflater(r)
	}
	c := ParseCoding(contentEncoding)
	if c == UnknownCoding {
		return nil, fmt.Errorf("content-encoding %q is unknown", contentEncoding)
	}
	return newDecoder(c, r, zstdWindow)
}

// newInflater returns a decoder for deflate. That means the zlib format, but some servers
// send the raw format.
func newInflater(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(2)
	if err != nil {
		return nil, err
	}
	const method, deflated, check = 0x0f, 8, 31
	if head[0]&method == deflated && (int(head[0])<<8|int(head[1]))%check == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}
