// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// answer is an answer that this process sends piece by piece to a client that waits:
// keepalives, then an engine's answer or an error. One goroutine sends all of them, so that
// no keepalive can follow the first byte of an engine's body.
type answer struct {
	p         *pass
	waiter    *holdstate.Waiter
	ticker    *time.Ticker     // of the keepalives; nil: there are none
	tick      <-chan time.Time // its channel
	committed bool             // a head with status 200 was sent before the engine's
	fixed     bool             // no error may follow in the body: it has a length, or a type other than events
	tail      []byte           // the last two bytes of the engine's body that the client has
}

// keepAliveEvery starts keepalives.
func (a *answer) keepAliveEvery(interval time.Duration) {
	a.ticker = time.NewTicker(interval)
	a.tick = a.ticker.C
}

func (a *answer) hasKeepalives() bool { return a.ticker != nil }

func (a *answer) stopKeepalives() {
	if a.ticker != nil {
		a.ticker.Stop()
	}
}

// keepalive sends one keepalive, and before the first one the head. If the wait has just ended,
// or Envoy has turned out not to take keepalives, it sends nothing, so that the end can still be
// answered with its own status. It returns false when the client has left.
func (a *answer) keepalive() (sent bool) {
	if !a.committed {
		if !a.p.mayStream() {
			a.stopKeepalives()
			a.ticker, a.tick = nil, nil
			return true
		}
		if !a.waiter.Begin() {
			return true
		}
		a.committed, a.p.streamedAt = true, time.Now()
		if !a.p.send(a.p.committedHead()) {
			return false
		}
	}
	return a.p.send(wire.StreamBody(keepaliveForm(a.p.req.Endpoint.API, a.p.req.Stream), false))
}

// keepaliveForm returns the bytes of one keepalive. A comment has ONE newline: an empty
// line after it is an empty event, which breaks clients. Anthropic's clients count only
// pings as a sign of life, not comments.
func keepaliveForm(api refusal.API, stream bool) []byte {
	switch {
	case !stream:
		return []byte(" ")
	case api == refusal.Anthropic:
		return []byte(": keep-alive\nevent: ping\ndata: {\"type\": \"ping\"}\n\n")
	default:
		return []byte(": keep-alive\n")
	}
}

// committedHead returns the head of an answer that begins before the engine has answered.
func (p *pass) committedHead() *extprocv3.ProcessingResponse {
	contentType := "application/json"
	if p.req.Stream {
		contentType = "text/event-stream; charset=utf-8"
	}
	return wire.StreamHead(http.StatusOK, p.ownHeaders([]*corev3.HeaderValue{
		{Key: "content-type", RawValue: []byte(contentType)},
		{Key: "cache-control", RawValue: []byte("no-cache")},
		{Key: "x-accel-buffering", RawValue: []byte("no")},
	}))
}

// headerRateLimit tells a caller how many requests its quota has left.
const headerRateLimit = "x-ratelimit-remaining-requests"

// ownHeaders adds the router's own headers to those of a streamed head.
func (p *pass) ownHeaders(headers []*corev3.HeaderValue) []*corev3.HeaderValue {
	if p.rateLimit != "" {
		headers = append(headers, &corev3.HeaderValue{Key: headerRateLimit, RawValue: []byte(p.rateLimit)})
	}
	return p.cors.replaceIn(headers)
}

// begin sends the engine's head. It returns false when the client has left.
func (a *answer) begin(resp *http.Response) (sent bool) {
	contentType := resp.Header.Get("Content-Type")
	a.fixed = resp.ContentLength >= 0 || contentType != "" && !strings.HasPrefix(contentType, "text/event-stream")
	a.p.streamedAt = time.Now()
	return a.p.send(wire.StreamHead(resp.StatusCode, a.p.ownHeaders(relayedHeaders(resp, a.p.timing))))
}

// send sends a part of the engine's body. It returns false when the client has left.
func (a *answer) send(data []byte, end bool) (sent bool) {
	a.tail = append(a.tail, data[max(0, len(data)-2):]...)
	a.tail = a.tail[max(0, len(a.tail)-2):]
	return a.p.send(wire.StreamBody(data, end))
}
