// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// fakeEngine is the engine behind the relay lane: each call waits for its script.
type fakeEngine struct {
	mu     sync.Mutex
	calls  []*call
	script func(*call) // nil: the test answers
}

// call is one relayed request.
type call struct {
	*http.Request
	body     []byte
	answer   chan result
	canceled chan struct{}
}

func (e *fakeEngine) RoundTrip(req *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(req.Body)
	c := &call{Request: req, body: body, answer: make(chan result, 1), canceled: make(chan struct{})}
	e.mu.Lock()
	e.calls = append(e.calls, c)
	script := e.script
	e.mu.Unlock()
	if script != nil {
		script(c)
	}
	select {
	case a := <-c.answer:
		return a.resp, a.err
	case <-req.Context().Done():
		close(c.canceled)
		return nil, req.Context().Err()
	}
}

// call waits until the engine has been called n times, and gives the last call.
func (e *fakeEngine) call(t *testing.T, n int) *call {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Len(t, e.calls, n, "calls of the engine")
	return e.calls[n-1]
}

// respond sends the head; the writer is the engine's end of the body.
func (c *call) respond(status int, kv ...string) *io.PipeWriter {
	r, w := io.Pipe()
	header := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		header.Add(kv[i], kv[i+1])
	}
	stop := context.AfterFunc(c.Context(), func() { _ = w.CloseWithError(c.Context().Err()) })
	length := int64(-1)
	if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	c.answer <- result{resp: &http.Response{StatusCode: status, Header: header, ContentLength: length, Body: closingBody{PipeReader: r, stop: stop}}}
	return w
}

// fail ends the call as Envoy's lane does for an engine that gave no answer.
func (c *call) fail(flags string) { c.refuse(http.StatusServiceUnavailable, flags) }

// refuse ends the call with an answer of the lane itself.
func (c *call) refuse(status int, flags string) {
	c.answer <- result{resp: &http.Response{
		StatusCode: status, Header: http.Header{"X-Holdgate-Flags": {flags}},
		Body: io.NopCloser(strings.NewReader("the lane's own text")),
	}}
}

type closingBody struct {
	*io.PipeReader
	stop func() bool
}

func (b closingBody) Close() error {
	b.stop()
	return b.PipeReader.Close()
}
