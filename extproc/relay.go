// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/net/http/httpguts"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/descriptors"
	"github.com/holdgate/holdgate/internal/refusal"
)

// NewRelay makes the client of Envoy's relay lane. A call waits while this process has
// no file descriptor for its connection: no engine is to blame for that.
func NewRelay(network, address string) http.RoundTripper {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return descriptors.Patient(&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		// The engine's bytes are passed as they are.
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     30 * time.Second,
	})
}

// answer is the engine's answer to one relayed attempt.
type answer struct {
	resp *http.Response
	err  error
}

// piece is a part of the engine's body; a nil error means that more may follow.
type piece struct {
	data []byte
	err  error
}

// relay calls the engine and passes its answer on. It returns again when the
// engine refused or died before its head, and the request waits once more.
func (h *hold) relay(g holdstate.Grant) (again bool, err error) {
	defer g.Release()
	h.st.routed(g)
	h.st.flight.note(func(r *Record) { r.Grant = g })
	ctx, cancel := context.WithCancel(h.st.gs.Context())
	defer cancel()
	answers := make(chan answer, 1)
	e := h.st.engine(g)
	request := h.st.relayRequest(ctx, g, &e)
	go func() {
		resp, err := h.st.s.d.Relay.RoundTrip(request) //nolint:bodyclose // by whoever takes the answer
		answers <- answer{resp: resp, err: err}
	}()
	for {
		select {
		case a := <-answers:
			if a.err == nil && e.notTaken(a.resp) {
				_ = a.resp.Body.Close()
				return h.unanswered(g, failNotTaken)
			}
			return h.answered(ctx, g, a)
		case <-h.tick:
			if !h.keepalive() {
				h.dropAnswer(cancel, answers)
				return false, nil
			}
		case <-h.st.gone:
			h.dropAnswer(cancel, answers)
			return false, nil
		}
	}
}

// dropAnswer is for a client that left. It cancels the call and waits until the
// engine's side of it is closed, so that the slot is not given back while the
// engine still works.
func (h *hold) dropAnswer(cancel context.CancelFunc, answers <-chan answer) {
	h.st.left()
	h.w.Tell(holdstate.Leave)
	cancel()
	if a := <-answers; a.err == nil {
		_ = a.resp.Body.Close()
	}
}

// answered goes on from the engine's head, or from its failure.
func (h *hold) answered(ctx context.Context, g holdstate.Grant, a answer) (again bool, err error) {
	flags := ""
	if a.err == nil {
		defer func() { _ = a.resp.Body.Close() }()
		flags = a.resp.Header.Get(envoy.FlagsHeader)
	}
	if a.err == nil && flags == "" {
		h.w.Tell(holdstate.Done)
		// The engine has the whole request, or does not want it.
		h.st.payload = nil
		h.st.body.Free()
		h.st.releaseBytes()
		return false, h.pump(ctx, a.resp)
	}
	if a.err != nil && ctx.Err() != nil {
		// The client's leaving ended the call: the replica is not to blame.
		h.st.left()
		h.w.Tell(holdstate.Leave)
		return false, nil
	}
	if r := h.laneRefusal(a, flags); r != nil {
		h.w.Tell(holdstate.Done)
		return false, h.fail(r)
	}
	how := failDied
	if refusedConnection(flags) {
		how = failRefused
	}
	return h.unanswered(g, how)
}

// unanswered has the request wait once more, or ends it when it must not be tried
// again.
func (h *hold) unanswered(g holdstate.Grant, how failure) (again bool, err error) {
	if r := h.st.noAnswer(g, how); r != nil {
		h.w.Tell(holdstate.Done)
		return false, h.fail(r)
	}
	h.w.Tell(holdstate.Back)
	return true, nil
}

// pump passes the engine's answer on.
func (h *hold) pump(ctx context.Context, resp *http.Response) error {
	ticks := h.tick
	h.st.flight.note(func(r *Record) { r.Status = resp.StatusCode })
	if h.committed {
		resp.Body = body.DecodedAnswer(resp)
	}
	switch {
	case !h.committed:
		ticks = nil // the engine's head is the first byte
		contentType := resp.Header.Get("Content-Type")
		h.fixed = resp.ContentLength >= 0 || contentType != "" && !strings.HasPrefix(contentType, "text/event-stream")
		headers := h.st.withCORS(withRateLimit(relayedHeaders(resp, h.st.timing), h.st.rateLimit))
		if !h.st.send(wire.StreamHead(resp.StatusCode, headers)) {
			return nil
		}
	case resp.StatusCode >= http.StatusMultipleChoices && h.st.req.Stream: // no answer, even if no error
		return h.engineError(resp)
	case resp.StatusCode >= http.StatusMultipleChoices:
		h.failing = h.cuts()
	}
	pieces := readPieces(ctx, resp.Body)
	var total int64
	for {
		select {
		case p := <-pieces:
			ticks = nil
			total += int64(len(p.data))
			if done, err := h.passOn(p, total); done {
				return err
			}
		case <-ticks:
			if !h.keepalive() {
				h.st.left()
				return nil
			}
		case <-h.st.gone:
			h.st.left()
			return nil
		}
	}
}

// passOn sends a piece of the engine's answer, of which total bytes have come. It
// is done when nothing more can be sent.
func (h *hold) passOn(p piece, total int64) (done bool, err error) {
	end := errors.Is(p.err, io.EOF)
	switch {
	case total > h.st.s.o.RelayMaxBytes:
		return true, h.broken(fmt.Sprintf("the answer is larger than %d bytes", h.st.s.o.RelayMaxBytes))
	case p.err != nil && !end && h.st.canceled():
		h.st.left() // its leaving ended the call
		return true, nil
	case p.err != nil && !end:
		h.passed(p.data)
		h.st.send(wire.StreamBody(p.data, false))
		if errors.Is(p.err, body.ErrUndecodable) {
			return true, h.broken(body.ErrUndecodable.Error())
		}
		return true, h.broken("the engine ended its answer half way")
	}
	h.passed(p.data)
	if !h.st.send(wire.StreamBody(p.data, end && !h.failing)) {
		h.st.left()
		return true, nil
	}
	if h.st.req.Stream {
		h.st.events.add(p.data)
	}
	if end && h.failing {
		return true, abort("backend_error")
	}
	return end, nil
}

// passed remembers how the part of the answer ends that the client has.
func (h *hold) passed(data []byte) {
	h.tail = append(h.tail, data[max(0, len(data)-2):]...)
	h.tail = h.tail[max(0, len(h.tail)-2):]
}

// separator ends the line and the event that an answer was cut in, so that an error
// event after it is one of its own.
func (h *hold) separator() string {
	switch tail := string(h.tail); {
	case tail == "", tail == "\n\n":
		return ""
	case strings.HasSuffix(tail, "\n"):
		return "\n"
	default:
		return "\n\n"
	}
}

// broken ends an answer that the engine did not finish. An error can follow a part of
// a stream, and keepalives, but no part of a plain answer.
func (h *hold) broken(message string) error {
	r := refusal.BrokenAnswer(message)
	begun := h.committed && len(h.tail) == 0
	if h.fixed || !h.st.req.Stream && !begun {
		h.st.noteRefusal(r)
		return abort(r.Code)
	}
	return h.late(r)
}

// pieceSize holds many events, and two of them per relay cost little.
const pieceSize = 16 << 10

// readPieces reads an answer until its end, or until ctx ends. Each piece is valid
// until the next is received.
func readPieces(ctx context.Context, r io.Reader) <-chan piece {
	pieces := make(chan piece)
	go func() {
		var buffers [2][]byte
		for i := 0; ; i = 1 - i {
			if buffers[i] == nil {
				buffers[i] = make([]byte, pieceSize)
			}
			n, err := r.Read(buffers[i])
			if n == 0 && err == nil {
				continue // a decoder has nothing yet
			}
			select {
			case pieces <- piece{data: buffers[i][:n], err: err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return pieces
}

// hopByHop are the headers of one connection; none of them is passed on.
var hopByHop = map[string]bool{
	"connection": true, "keep-alive": true, "proxy-connection": true, "proxy-authenticate": true,
	"proxy-authorization": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
}

// relayRequest is the request as the client sent it, but for what belongs to its
// connection or to us, or would make the relay's client refuse the whole: Envoy
// (1.40) lets through hosts like a@b, and values with a CR. The answer must come in
// identity coding: keepalives may have begun it.
func (st *stream) relayRequest(ctx context.Context, g holdstate.Grant, e *Engine) *http.Request {
	r := &http.Request{
		Method: st.req.Method,
		URL:    &url.URL{Scheme: "http", Host: "relay", Opaque: e.Prefix + cmp.Or(st.flight.forward.PathAndQuery, st.req.PathAndQuery)},
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"User-Agent": nil},
		ContentLength: int64(len(st.payload)),
	}
	payload := st.payload
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(payload)), nil }
	r.Body, _ = r.GetBody()
	for name, value := range st.head.block.All() {
		n := string(name)
		switch {
		case n == headerAuthority:
			r.Host = string(value)
		case !httpguts.ValidHeaderFieldName(n), !httpguts.ValidHeaderFieldValue(string(value)):
		case n == "content-encoding" && st.rewritten, n == headerOrigin && st.answersPages():
		case st.flight.forward.StripKeys && (n == headerAuthorization || n == headerAPIKey):
		case n == "accept-encoding", n == "content-length", n == "expect", n == headerRequestID, hopByHop[n],
			strings.HasPrefix(n, ":"), strings.HasPrefix(n, wakePrefix), strings.HasPrefix(n, ownPrefix):
		default:
			r.Header.Add(n, string(value))
		}
	}
	if !httpguts.ValidHostHeader(r.Host) {
		r.Host = ""
	}
	e.relay(r, st.flight.host)
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Set(headerRequestID, st.flight.id)
	r.Header.Set(envoy.DestinationHeader, g.Replica().Address)
	if st.flight.stream != "" {
		r.Header.Add(envoy.ViaHeader, st.flight.stream)
	}
	return r.WithContext(ctx)
}

const serverTiming = "server-timing"

// relayedHeaders are the engine's own headers, and how long the request waited.
func relayedHeaders(resp *http.Response, timing string) []*corev3.HeaderValue {
	var out []*corev3.HeaderValue
	for name, values := range resp.Header {
		n := strings.ToLower(name)
		if hopByHop[n] || strings.HasPrefix(n, ownPrefix) {
			continue
		}
		if n == serverTiming {
			values, timing = append(values, timing), ""
		}
		// Of a name that stands twice in a streamed answer Envoy (1.40) keeps the
		// last, so values are joined as HTTP allows. Cookies cannot be.
		value := strings.Join(values, ", ")
		if n == "set-cookie" {
			value = values[len(values)-1]
		}
		out = append(out, &corev3.HeaderValue{Key: n, RawValue: []byte(value)})
	}
	if timing != "" {
		out = append(out, &corev3.HeaderValue{Key: serverTiming, RawValue: []byte(timing)})
	}
	return out
}
