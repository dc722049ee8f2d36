// SPDX-License-Identifier: Apache-2.0

package herd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
)

// client is one request, seen from Envoy's side. Its results are valid once it has
// ended.
type client struct {
	n      int
	key    string
	stream bool
	leave  context.CancelFunc
	done   chan struct{}

	status  string // of the head
	body    string
	longest time.Duration // the longest time without a byte
	took    time.Duration
	err     error
}

// ask sends a request of about this many tokens; its answer must contain n.
func (d *router) ask(n int, key string, tokens int) *client {
	d.t.Helper()
	c := &client{n: n, key: key, stream: n%2 == 0, done: make(chan struct{})}
	id := uuid.NewString()
	d.mu.Lock()
	d.clients[id] = c
	d.mu.Unlock()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(d.t.Context(), envoy.LaneMetadata, envoy.LaneEdge))
	c.leave = cancel
	stream, err := extprocv3.NewExternalProcessorClient(d.envoy).Process(ctx)
	require.NoError(d.t, err)
	body := fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":%q}],"n":%d}`, c.stream, strings.Repeat("x", tokens*32/10), n)
	for _, m := range extproctest.Request("/v1/chat/completions", body, "x-api-key", key, "x-request-id", id) {
		require.NoError(d.t, stream.Send(m))
	}
	go c.receive(stream)
	return c
}

// receive reads until the end, and records the longest silence.
func (c *client) receive(stream extprocv3.ExternalProcessor_ProcessClient) {
	defer close(c.done)
	defer c.leave()
	begin := time.Now()
	last := begin
	for {
		m, err := stream.Recv()
		c.longest = max(c.longest, time.Since(last))
		c.took = time.Since(begin)
		last = time.Now()
		if err != nil {
			c.err = err
			return
		}
		answer := m.GetStreamedImmediateResponse()
		for _, h := range answer.GetHeadersResponse().GetHeaders().GetHeaders() {
			if h.GetKey() == ":status" {
				c.status = string(h.GetRawValue())
			}
		}
		c.body += string(answer.GetBodyResponse().GetBody())
		if m.GetImmediateResponse() != nil {
			c.body += m.GetImmediateResponse().String()
		}
	}
}

// answer returns the body after the keepalives.
func (c *client) answer() string {
	return strings.TrimLeft(strings.ReplaceAll(c.body, ": keep-alive\n", ""), " ")
}

// want returns the answer of an engine.
func (c *client) want() string { return fmt.Sprintf(`{"answer":%d}`, c.n) }

// engines are the engines behind the relay lane. Each sends its head after a second of
// work, and its answer some time later.
type engines struct {
	site *site
	more time.Duration
}

// RoundTrip implements http.RoundTripper.
func (e engines) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	n := 0
	if _, err := fmt.Sscanf(string(body[strings.LastIndex(string(body), `"n":`):]), `"n":%d}`, &n); err != nil {
		return nil, err
	}
	w := &working{engines: e, engine: r.Header.Get(envoy.DestinationHeader), answer: strings.NewReader(fmt.Sprintf(`{"answer":%d}`, n))}
	e.site.begins(w.engine)
	<-time.After(time.Second)
	if r.Context().Err() != nil {
		_ = w.Close()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1, Body: w}, nil
}

// working is an answer whose engine works until its end.
type working struct {
	engines

	engine string
	answer *strings.Reader
	ended  bool
}

// Read implements io.Reader.
func (w *working) Read(p []byte) (int, error) {
	if w.answer.Size() == int64(w.answer.Len()) {
		<-time.After(w.more)
	}
	return w.answer.Read(p)
}

// Close implements io.Closer.
func (w *working) Close() error {
	if !w.ended {
		w.ended = true
		w.site.ends(w.engine)
	}
	return nil
}
