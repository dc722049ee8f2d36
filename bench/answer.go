// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"strconv"
)

var errBadAnswer = errors.New("not an HTTP/1.1 answer this client reads")

// head has the parts of an answer's head that the load generator uses.
type head struct {
	status  int
	length  int
	chunked bool
}

// readHead reads a status line and headers. It allocates nothing: the load generator
// shares two cores with the systems it measures, so it must be cheap.
func readHead(r *bufio.Reader) (head, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return head{}, err
	}
	h := head{length: -1}
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return head{}, fmt.Errorf("%w: status line %q", errBadAnswer, line)
	}
	if h.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return head{}, fmt.Errorf("%w: status line %q", errBadAnswer, line)
	}
	for {
		line, err = r.ReadSlice('\n')
		if err != nil {
			return head{}, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		if err := h.take(line); err != nil {
			return head{}, err
		}
	}
}

// take notes the two headers that determine where the body ends.
func (h *head) take(line []byte) error {
	name, value, found := bytes.Cut(line, []byte(":"))
	if !found {
		return fmt.Errorf("%w: header %q", errBadAnswer, line)
	}
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("content-length")):
		length, err := strconv.Atoi(string(value))
		if err != nil || length < 0 {
			return fmt.Errorf("%w: content-length %q", errBadAnswer, value)
		}
		h.length = length
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		h.chunked = bytes.EqualFold(value, []byte("chunked"))
	}
	return nil
}

// body returns a reader that ends where the answer's body ends.
func (h head) body(r *bufio.Reader) (io.Reader, error) {
	switch {
	case h.chunked:
		return httputil.NewChunkedReader(r), nil
	case h.length >= 0:
		return io.LimitReader(r, int64(h.length)), nil
	default:
		return nil, fmt.Errorf("%w: neither content-length nor chunked", errBadAnswer)
	}
}

// readAnswer reads one answer to its end and appends its body to into.
func readAnswer(r *bufio.Reader, into []byte) (status int, body []byte, err error) {
	h, err := readHead(r)
	if err != nil {
		return 0, into, err
	}
	if !h.chunked && h.length >= 0 {
		start := len(into)
		into = append(into, make([]byte, h.length)...)
		_, err := io.ReadFull(r, into[start:])
		return h.status, into, err
	}
	source, err := h.body(r)
	if err != nil {
		return h.status, into, err
	}
	rest, err := io.ReadAll(source)
	if err != nil {
		return h.status, into, err
	}
	// The chunked reader stops before the blank line that ends the trailers.
	if _, err := r.ReadSlice('\n'); err != nil {
		return h.status, into, err
	}
	return h.status, append(into, rest...), nil
}
