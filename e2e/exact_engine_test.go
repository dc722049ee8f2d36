// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exactEngine is an HTTP/1.1 engine that parses the framing of requests itself, so that
// a byte more or less than announced is a fault and not another request.
type exactEngine struct {
	addr   string
	answer func(*exactRequest) string // the bytes of the answer; empty closes the connection

	mu       sync.Mutex
	requests []*exactRequest
	faults   map[string]error // by the request's head
}

// exactRequest is a request as received on the wire.
type exactRequest struct {
	line    string
	header  textproto.MIMEHeader
	body    string
	trailer textproto.MIMEHeader
}

const exactOK = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n" + `{"answer":true}`

func newExactEngine(t *testing.T, answer func(*exactRequest) string) *exactEngine {
	t.Helper()
	if answer == nil {
		answer = func(*exactRequest) string { return exactOK }
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &exactEngine{addr: l.Addr().String(), answer: answer, faults: map[string]error{}}
	var conns sync.WaitGroup
	stop := make(chan struct{})
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				done := make(chan struct{})
				defer close(done)
				go func() {
					select {
					case <-stop:
						_ = conn.Close()
					case <-done:
					}
				}()
				e.serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(stop)
		conns.Wait()
	})
	return e
}

// serve answers the requests of a connection until its end or the first fault.
func (e *exactEngine) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		if _, err := r.Peek(1); err != nil {
			return
		}
		q, err := readExact(r)
		if err == nil {
			err = requireNothingMore(conn, r)
		}
		e.mu.Lock()
		if err != nil {
			e.faults[fmt.Sprint(q.line, q.header)] = err
		}
		if err == nil {
			e.requests = append(e.requests, q)
		}
		e.mu.Unlock()
		if err != nil {
			return
		}
		answer := e.answer(q)
		if _, err := io.WriteString(conn, answer); err != nil || answer == "" {
			return
		}
	}
}

// readExact reads one request. With an error it returns the part that it has read.
func readExact(r *bufio.Reader) (*exactRequest, error) {
	q := &exactRequest{}
	text := textproto.NewReader(r)
	var err error
	if q.line, err = text.ReadLine(); err != nil {
		return q, err
	}
	if !strings.HasSuffix(q.line, " HTTP/1.1") {
		return q, errors.New("not a request line")
	}
	if q.header, err = text.ReadMIMEHeader(); err != nil {
		return q, err
	}
	length, coding := q.header.Values("Content-Length"), q.header.Values("Transfer-Encoding")
	switch {
	case len(length)+len(coding) > 1:
		return q, errors.New("more than one framing")
	case len(length) == 1:
		n, err := strconv.Atoi(length[0])
		if err != nil {
			return q, err
		}
		body := make([]byte, n)
		n, err = io.ReadFull(r, body)
		q.body = string(body[:n])
		return q, err
	case len(coding) == 1:
		body, err := io.ReadAll(httputil.NewChunkedReader(r))
		q.body = string(body)
		if err == nil {
			q.trailer, err = text.ReadMIMEHeader()
		}
		return q, err
	}
	return q, nil
}

// requireNothingMore requires that nothing follows a request before it is answered.
// Envoy does not pipeline, and surplus bytes would follow directly.
func requireNothingMore(conn net.Conn, r *bufio.Reader) error {
	if err := conn.SetReadDeadline(time.Now().Add(3 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := r.Peek(1); err == nil {
		more, _ := r.Peek(r.Buffered())
		return fmt.Errorf("%d bytes or more after the request's end: %.80q", len(more), more)
	} else if !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // the other side has closed, and sent nothing more
	}
	return conn.SetReadDeadline(time.Time{})
}

// taken returns the requests and the faults since the last call.
func (e *exactEngine) taken() (requests []*exactRequest, faults map[string]error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	requests, faults = e.requests, e.faults
	e.requests, e.faults = nil, map[string]error{}
	return requests, faults
}

// bodyShape is a way to send a request's body.
type bodyShape struct {
	http2    bool
	size     int
	known    bool // the head has the length
	trailers bool
}

func (b bodyShape) String() string {
	return fmt.Sprintf("http2=%t size=%d known=%t trailers=%t", b.http2, b.size, b.known, b.trailers)
}

// bodyShapes returns all ways to send bodies of these sizes. HTTP/1.1 has trailers only
// after chunks.
func bodyShapes(sizes ...int) []bodyShape {
	var all []bodyShape
	for _, size := range sizes {
		for _, http2 := range []bool{false, true} {
			for _, known := range []bool{false, true} {
				all = append(all, bodyShape{http2: http2, size: size, known: known})
				if http2 || !known {
					all = append(all, bodyShape{http2: http2, size: size, known: known, trailers: true})
				}
			}
		}
	}
	return all
}

// paddedBody returns a request of n bytes, at least 13.
func paddedBody(model string, n int) string {
	body := `{"model":"` + model + `"}`
	return body[:len(body)-1] + strings.Repeat(" ", max(0, n-len(body))) + "}"
}

// newHTTP2Client returns a client that uses HTTP/2 without TLS.
func newHTTP2Client(t *testing.T) *http.Client {
	t.Helper()
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// shape gives a request the body in a shape.
func (b bodyShape) shape(r *http.Request, body string) {
	r.Body = io.NopCloser(strings.NewReader(body))
	r.GetBody = nil
	r.ContentLength = -1
	if b.known {
		r.ContentLength = int64(len(body))
	}
	if b.trailers {
		r.Trailer = http.Header{"X-Trailer": {"after"}, "X-Checksum": {"1"}}
	}
}
