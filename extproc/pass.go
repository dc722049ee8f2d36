// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"io"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// pass is one ext_proc stream of a request: the edge's, or one of the rehold lane's.
// Only the goroutine of run sends. It also receives until the body has been read; after
// that a waiting request has a second goroutine that receives.
type pass struct {
	s      *Server
	gs     extprocv3.ExternalProcessor_ProcessServer
	lane   string       // empty for a gateway
	first  wire.Inbound // the headers message
	head   head
	cors   cors
	upload upload
	flight *flight
	req    Request

	to         Destination
	clientLeft bool          // left was called
	streamedAt time.Time     // when the head of a streamed answer was sent; zero: none was
	prefixed   bool          // the path has the prefix of the engine of an earlier attempt
	carried    bool          // Envoy carries the answer, and its access log ends the flight
	gone       chan struct{} // closed when the client has left; nil until watch
	closed     bool          // Envoy closed the stream, and did not reset it; to be read after gone
	timing     string        // the value of Server-Timing; empty: the request has not waited
	rateLimit  string        // how many requests the caller's quota has left; empty: no quota
}

// errGone means that the client has left.
var errGone = errors.New("the client left")

// run reads the request and answers it.
func (p *pass) run() error {
	if !p.receive(&p.first) {
		return nil
	}
	if p.first.Kind != wire.RequestHeaders {
		return status.Error(codes.InvalidArgument, "an ext_proc stream must begin with request_headers")
	}
	p.lane = laneOf(p.gs.Context())
	p.head = readHead(p.first.Headers)
	p.cors = newCORS(p.s.o.CORSOrigins, p.head.origin)
	p.prefixed = p.lane == envoy.LaneRehold && p.head.trimPrefix()
	endpoint := endpoints[string(p.head.pathOnly())]
	if p.lane == "" && !p.head.isForRouter(endpoint) {
		return p.notOurs()
	}
	if p.lane == envoy.LaneEdge && p.head.isReadyCheck() {
		p.send(p.s.readiness())
		return nil
	}
	p.req.Endpoint = endpoint
	if p.lane == "" && p.head.ticket != "" {
		return p.comeBack()
	}
	switch {
	case !p.begin():
		return nil
	case p.isPreflight():
		return p.preflight()
	case endpoint == nil:
		return p.models()
	}
	err := p.read()
	if why, ok := errors.AsType[*refusal.Refusal](err); ok {
		return p.refuse(why)
	}
	if err != nil {
		p.left()
		return nil //nolint:nilerr // the client has left, and gets no answer
	}
	return p.answer()
}

// answer gets a decision on the request and executes it. A request whose wait ended without
// a slot, and without a reason to refuse it, is decided again.
func (p *pass) answer() error {
	if p.lane == "" { // Holdgate's own bootstrap, which names its lanes, sends requests to replicas
		p.to = p.flight.call.Destination(p.req.Model)
		p.flight.to = p.to
	}
	if p.to == AsPicker {
		if p.s.sentHere(&p.head) {
			return p.refuse(refusal.LoopDetected(p.req.Model))
		}
		p.req.Hint = p.hint()
	}
	for {
		d := p.flight.call.Decide(&p.req)
		p.rateLimit = d.RateLimit
		switch {
		case d.Grant != nil && p.relaysTrailers():
			if again, err := p.relayAtOnce(d.Grant); !again {
				return err
			}
		case d.Grant != nil:
			return p.serve(d.Grant)
		case d.Waiter != nil:
			if again, err := p.wait(d); !again {
				return err
			}
		case d.Redirect != nil:
			return p.redirect(d.Redirect)
		default:
			p.flight.note(func(r *Record) { r.waited(0, 0, d.Outcome) })
			return p.refuse(d.Refusal)
		}
	}
}

// wait waits for a slot and answers the request with it. again is true when the wait
// ended without a slot and the request must be decided again.
func (p *pass) wait(d Decision) (again bool, err error) {
	if d.Held {
		p.req.Hint = nil // it was of a moment without replicas, and may be large
	}
	w := &wait{p: p, waiter: d.Waiter, held: d.Held, impatient: d.Impatient, answer: answer{p: p, waiter: d.Waiter}}
	defer w.close()
	w.start(d)
	for {
		s, left := w.untilSlot()
		if left {
			return false, nil
		}
		p.keepPlace(s.Seq)
		if s.State == holdstate.Ended {
			if why := w.refusal(s); why != nil {
				return false, w.answer.fail(why)
			}
			return true, nil
		}
		p.timing = w.timing()
		if !p.relaysTrailers() && (!w.answer.hasKeepalives() || p.to.throughGateway() && !w.answer.committed) {
			w.waiter.Report(holdstate.Done)
			w.note()
			return false, p.serve(s.Grant)
		}
		r := &relay{p: p, waiter: w.waiter, answer: &w.answer, grant: s.Grant}
		if again, err := r.run(); !again {
			return false, err
		}
	}
}

// laneOf returns the lane that Holdgate's bootstrap puts in the initial metadata of a
// stream, or an empty string for a gateway.
func laneOf(ctx context.Context) string {
	if lane := metadata.ValueFromIncomingContext(ctx, envoy.LaneMetadata); len(lane) == 1 {
		return lane[0]
	}
	return ""
}

// begin sets the flight of the request: a new one, or in the rehold lane that of the
// earlier passes. It returns false when the client has left in between.
func (p *pass) begin() (begun bool) {
	if p.lane == envoy.LaneRehold {
		var left bool
		if p.flight, left = p.s.flights.findOrLeft(string(p.head.requestID)); left {
			return false
		}
	}
	if p.flight == nil {
		if p.lane == envoy.LaneRehold && p.s.d.Others != nil {
			p.s.d.Others.Claimed(string(p.head.requestID))
		}
		p.flight = p.s.flights.start(p.head.requestID, p.head.stream, envoyOf(p.gs.Context()))
		p.flight.clocks = p.head.clocks
	}
	if p.lane == "" {
		p.s.gateways.note(p.flight.envoy, p.flight.arrived)
	}
	p.head.clocks = p.flight.clocks
	p.req.ID = p.flight.id
	p.req.Arrived = p.flight.arrived
	p.req.Seq = p.flight.place()
	p.req.ClientIDs = [2]string{p.head.clientRequestID, string(p.head.requestID)}
	p.req.Patience = p.head.patience
	p.req.Method, p.req.PathAndQuery = string(p.head.method), string(p.head.path)
	p.req.body = &p.upload.body
	p.flight.note(func(r *Record) {
		r.Method, r.TraceID = method(p.req.Method), p.head.traceID
		if r.Verdict != VerdictHold {
			r.Verdict = VerdictRefuse
		}
	})
	p.flight.noteRequest(&p.req)
	return true
}

// receive receives the next message. It returns false when Envoy has ended the stream.
func (p *pass) receive(in *wire.Inbound) (more bool) { return p.gs.RecvMsg(in) == nil }

// send sends a message. If the request has a flight, an answer gets its id. It returns
// false when the client or Envoy has gone and nothing more can be sent.
func (p *pass) send(m any) (sent bool) {
	if answer, ok := m.(*extprocv3.ProcessingResponse); ok && p.flight != nil {
		wire.SetHeader(answer, headerRequestID, p.flight.id)
	}
	return p.gs.SendMsg(m) == nil
}

// canceled reports whether the stream was reset.
func (p *pass) canceled() bool { return p.gs.Context().Err() != nil }

// left records that the client has left. While the server closes, which ends streams too, it
// records a refusal instead.
func (p *pass) left() {
	p.clientLeft = true
	if p.s.isClosing() {
		p.flight.noteRefusal(refusal.For(holdstate.ErrDraining, refusal.Wait{}))
		return
	}
	p.flight.note(func(r *Record) { r.Status, r.ErrorCode = StatusClientGone, "" })
}

// noteRefusal records a refusal and reports it to the observer.
func (p *pass) noteRefusal(r *refusal.Refusal) {
	p.flight.noteRefusal(r)
	p.s.d.Observer.Noted(&p.req, Note{Refusal: r})
}

// keepPlace stores the request's place among the waiters, for a later wait.
func (p *pass) keepPlace(seq uint64) {
	p.req.Seq = seq
	p.flight.keepPlace(seq)
}

// hasSlot reports the request's first slot to the observer.
func (p *pass) hasSlot(g holdstate.Grant) {
	if p.flight.firstSlot() {
		p.s.d.Observer.Routed(&p.req, g)
	}
}

// watch starts a goroutine that receives, to notice when the client leaves while the
// request waits. The pass counts in holds until close.
func (p *pass) watch() {
	if p.gone != nil {
		return
	}
	p.s.holds.Add(1)
	p.gone = make(chan struct{})
	go func() {
		defer close(p.gone)
		for {
			in := wire.Inbound{}
			if err := p.gs.RecvMsg(&in); err != nil {
				p.closed = errors.Is(err, io.EOF)
				return
			}
			in.Free()
		}
	}()
}

// close releases what the pass still owns, and ends the flight unless Envoy carries the
// request.
func (p *pass) close() {
	if p.gone != nil {
		p.s.holds.Add(-1)
	}
	p.noteStreamed()
	p.first.Free()
	p.upload.free()
	if p.flight != nil && !p.carried {
		p.s.endLastPass(p.flight)
	}
}
