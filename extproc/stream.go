// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// stream is one pass of one request: the edge's, or one of the rehold lane's.
// Only the goroutine of run sends. As long as the body is read the same goroutine
// receives; a request that waits has a reader of its own.
type stream struct {
	s      *Server
	gs     extprocv3.ExternalProcessor_ProcessServer
	raw    wire.Inbound // the headers message
	head   head
	body   body.Body
	share  share // of the memory for bodies
	flight *flight
	req    Request

	payload   []byte        // the body while the request waits
	rewritten bool          // the body is not the client's: an alias was resolved, in identity coding
	trailers  bool          // they followed the body
	prefixed  bool          // the path came with the prefix of an earlier engine
	native    bool          // Envoy carries the answer: its log ends the flight
	gone      chan struct{} // closed when the client has left; nil until watch
	timing    string        // Server-Timing of a request that waited
	events    lastEvent     // of a relayed stream
	rateLimit string        // what the caller's quota still has; empty: it has none
}

// errGone is a client that left.
var errGone = errors.New("the client left")

func (st *stream) run() error {
	in := wire.Inbound{}
	if !st.receive(&in) {
		return nil
	}
	if in.Kind != wire.RequestHeaders {
		in.Free()
		return status.Error(codes.InvalidArgument, "an ext_proc stream must begin with request_headers")
	}
	st.raw = in
	st.head = readHead(in.Headers)
	lane := laneOf(st.gs.Context())
	st.prefixed = lane == envoy.LaneRehold && st.head.trimPrefix()
	endpoint := endpoints[string(st.head.pathOnly())]
	if lane == "" && (endpoint == nil && !st.head.asksForModels() || endpoint != nil && st.head.bodyless()) {
		return st.pass()
	}
	if st.asksIfReady(lane) {
		st.ready()
		return nil
	}
	st.req.Endpoint = endpoint
	switch {
	case !st.begin(lane):
		return nil
	case st.preflight():
		return nil
	case endpoint == nil:
		return st.other(lane)
	}
	if err := st.take(lane); err != nil {
		return st.failed(err)
	}
	return st.decide()
}

// take takes a call of an endpoint, up to the decision. Its error is a *refusal.Refusal or
// what ended the stream.
func (st *stream) take(lane string) error {
	if st.head.upgrade && st.req.Endpoint.API == refusal.Responses {
		return refusal.NoWebSocket()
	}
	if st.head.bodyless() {
		return refusal.MethodNotAllowed(http.MethodPost)
	}
	if lane != envoy.LaneRehold {
		if r := st.cameBack(); r != nil {
			return r
		}
	}
	if r := st.authenticate(lane); r != nil {
		return r
	}
	if lane != envoy.LaneRehold && st.head.tooLarge() {
		return refusal.HeadersTooLarge()
	}
	if r := st.head.refusal(st.s.o.MaxRequestBytes, st.raw.End); r != nil {
		return r
	}
	if err := st.readBody(); err != nil {
		return err
	}
	if err := st.readRequest(); err != nil {
		return err
	}
	if lane == envoy.LaneRehold {
		if r := st.failedAttempt(); r != nil {
			return r
		}
	}
	return nil
}

// laneOf is the lane that the bootstrap names in the stream's initial metadata. A
// stream without it comes from somebody else's Envoy.
func laneOf(ctx context.Context) string {
	if lane := metadata.ValueFromIncomingContext(ctx, envoy.LaneMetadata); len(lane) == 1 {
		return lane[0]
	}
	return ""
}

// receive receives the next message, until Envoy ends the stream.
func (st *stream) receive(in *wire.Inbound) (more bool) { return st.gs.RecvMsg(in) == nil }

// send sends an answer. When it was not sent, the client or Envoy has gone, and
// nothing more can be sent. A request that passes untouched has no flight, and no id
// of ours.
func (st *stream) send(m any) (sent bool) {
	if ours, ok := m.(*extprocv3.ProcessingResponse); ok && st.flight != nil {
		wire.SetHeader(ours, headerRequestID, st.flight.id)
	}
	return st.gs.SendMsg(m) == nil
}

// canceled says whether the stream was reset.
func (st *stream) canceled() bool { return st.gs.Context().Err() != nil }

// begin makes the request known, or finds it again in the rehold lane. It returns false
// when the client left on the way there.
func (st *stream) begin(lane string) (begun bool) {
	if lane == envoy.LaneRehold {
		var left bool
		if st.flight, left = st.s.flights.findOrLeft(string(st.head.requestID)); left {
			return false
		}
	}
	if st.flight == nil {
		st.flight = st.s.flights.start(st.head.requestID, st.head.stream, peerOf(st.gs.Context()))
		st.flight.clocks = st.head.clocks
	}
	st.head.clocks = st.flight.clocks
	st.req.ID = st.flight.id
	st.req.Arrived = st.flight.arrived
	st.req.Seq = st.flight.place()
	st.req.ClientIDs = [2]string{st.head.clientRequestID, string(st.head.requestID)}
	st.req.Patience = st.head.patience
	st.req.Method, st.req.PathAndQuery = string(st.head.method), string(st.head.path)
	st.req.body = &st.body
	st.flight.note(func(r *Record) {
		r.Method, r.TraceID = method(st.req.Method), st.head.traceID
		if r.Verdict != VerdictHold {
			r.Verdict = VerdictRefuse
		}
	})
	st.noteRequest()
	return true
}

// noteRequest records what is known of the request so far, without its body.
func (st *stream) noteRequest() {
	st.flight.note(func(r *Record) {
		r.Request = st.req
		r.Request.body = nil
	})
}

// authenticate finds the caller, once: the rehold lane has no keys. There the edge's pass
// has found it, in this process or in the one before it. That Envoy says so is enough over
// a unix socket, to which only its user may connect; over TCP it is not.
func (st *stream) authenticate(lane string) (why *refusal.Refusal) {
	fl := st.flight
	switch {
	case lane != envoy.LaneRehold:
		fl.call, why = st.s.d.Decider.Authenticate(Credentials{
			Method: st.req.Method, PathAndQuery: st.req.PathAndQuery,
			Authorization: st.head.authorization, APIKey: st.head.apiKey, Metadata: st.identity(),
		})
		if why != nil {
			return why
		}
		fl.forward = fl.call.Forward()
	case fl.call != nil:
	case overUnix(st.gs.Context()):
		fl.call = st.s.d.Decider.Resume()
	default:
		return refusal.RouterRestarted()
	}
	st.req.Caller = fl.call.Caller()
	st.noteRequest()
	return nil
}

// noteRefusal records how the request ended without an engine's answer.
func (st *stream) noteRefusal(why *refusal.Refusal) {
	st.flight.note(func(r *Record) { r.refuse(why) })
}

// left records that the client went away, unless it has the whole answer. When the
// server is closing it was the server that ended the stream.
func (st *stream) left() {
	switch {
	case st.events.passed:
	case st.s.isClosing():
		st.noteRefusal(refusal.For(holdstate.ErrDraining, refusal.Wait{}))
	default:
		st.flight.note(func(r *Record) { r.Status, r.ErrorCode = StatusClientGone, "" })
	}
}

// keepPlace remembers where the request stands among the waiters.
func (st *stream) keepPlace(seq uint64) {
	st.req.Seq = seq
	st.flight.keepPlace(seq)
}

// readBody takes the body until its end. Its error is a *refusal.Refusal or what ended
// the stream.
func (st *stream) readBody() error {
	for {
		in := wire.Inbound{}
		if !st.receive(&in) {
			return errGone
		}
		switch in.Kind {
		case wire.RequestBody:
			st.body.Add(in.Body)
		case wire.RequestTrailers:
			st.trailers = true
		default:
			in.Free()
		}
		if st.body.Size() > st.s.o.MaxRequestBytes {
			return refusal.TooLarge(st.s.o.MaxRequestBytes)
		}
		extra := st.head.coding.Extra(st.s.o.MaxRequestBytes)
		most := cmp.Or(max(0, st.head.contentLength), st.s.o.MaxRequestBytes) + extra
		if in.End {
			most = st.body.Size() + extra
			st.share.shrink(most)
		}
		if err := st.share.grow(st.gs.Context(), st.body.Size(), most); err != nil || in.End {
			return err
		}
	}
}

// readRequest reads the fields of the decision, and puts a model in the place of its
// alias. While it decodes a body it has the memory for that.
func (st *stream) readRequest() error {
	if extra := st.head.coding.Extra(st.s.o.MaxRequestBytes); extra > 0 {
		n := st.body.Size() + extra
		if err := st.share.grow(st.gs.Context(), n, n); err != nil {
			return err
		}
		defer func() { st.share.shrink(st.body.Size()) }()
	}
	fields, err := st.body.ReadFields(st.req.Endpoint.Kind, st.head.coding, st.s.o.MaxRequestBytes)
	if err != nil {
		return err
	}
	if r := st.flight.call.CheckBody(&st.req); r != nil {
		return r
	}
	if model := st.flight.call.Resolve(fields.Model); model != fields.Model {
		if err := st.body.SetModel(&fields, model, st.head.coding, st.s.o.MaxRequestBytes); err != nil {
			return err
		}
		st.rewritten = true
	}
	st.req.Fields = fields
	st.req.TextTokens = st.body.TextTokens()
	st.req.BodySize = st.body.Size()
	st.noteRequest()
	return nil
}

// failed ends a request that could not be read.
func (st *stream) failed(err error) error {
	if why, ok := errors.AsType[*refusal.Refusal](err); ok {
		return st.refuse(why)
	}
	st.left() // there is nobody to answer
	return nil
}

// refuse answers at once.
func (st *stream) refuse(r *refusal.Refusal) error {
	api := refusal.OpenAI
	if st.req.Endpoint != nil {
		api = st.req.Endpoint.API
	}
	st.noteRefusal(r)
	more := st.cors()
	if st.rateLimit != "" {
		more = append(more, [2]string{headerRateLimit, st.rateLimit})
	}
	st.send(refused(r, api, more...))
	return nil
}

// decide carries out what the policy says.
func (st *stream) decide() error {
	d := st.flight.call.Decide(&st.req)
	st.rateLimit = d.RateLimit
	switch {
	case d.Grant != nil:
		return st.serve(d.Grant)
	case d.Waiter != nil:
		return st.wait(d)
	case d.Redirect != nil:
		return st.redirect(d.Redirect)
	default:
		st.flight.note(func(r *Record) { r.waited(0, 0, d.Outcome) })
		return st.refuse(d.Refusal)
	}
}

// routed counts the request's first slot.
func (st *stream) routed(g holdstate.Grant) {
	if st.flight.firstSlot() {
		st.s.d.Observer.Routed(&st.req, g)
	}
}

// readToEnd reads until the stream's end.
func (st *stream) readToEnd() {
	for {
		in := wire.Inbound{}
		if !st.receive(&in) {
			return
		}
		in.Free()
	}
}

// watch gives the stream a reader of its own, so that a client that leaves is
// noticed while the request waits.
func (st *stream) watch() {
	if st.gone != nil {
		return
	}
	st.gone = make(chan struct{})
	go func() {
		defer close(st.gone)
		st.readToEnd()
	}()
}

func (st *stream) releaseBytes() { st.share.shrink(0) }

// close gives back what the pass still has.
func (st *stream) close() {
	st.raw.Free()
	st.body.Free()
	st.releaseBytes()
	if st.flight != nil && !st.native {
		st.s.finish(st.flight)
	}
}
