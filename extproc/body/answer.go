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

// ErrUndecodable is an answer whose coding is unknown, or whose bytes are not of it.
var ErrUndecodable = errors.New("the engine's answer is compressed in a way that the router cannot read")

// DecodedAnswer is the body of an engine's answer in identity coding, for an answer
// that keepalives have begun. Engines are asked for identity coding, and some
// compress all the same.
func DecodedAnswer(resp *http.Response) io.ReadCloser {
	coding := strings.ToLower(strings.TrimSpace(strings.Join(resp.Header.Values("Content-Encoding"), ",")))
	if coding == "" || coding == "identity" {
		return resp.Body
	}
	return &decoder{Closer: resp.Body, coded: resp.Body, coding: coding}
}

// decoder reads a coded body as it comes. Its reader is made by the first Read, as
// some read the first bytes of the body for that.
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

// undecodable tells bytes that are not of the coding from an answer that breaks off.
func undecodable(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUndecodable, err)
}

// newAnswerDecoder makes a decoder of a Content-Encoding: of one that requests may have,
// or of deflate.
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

// newInflater reads the zlib format, which deflate stands for, or the bare one that
// some servers send.
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
