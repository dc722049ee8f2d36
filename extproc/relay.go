// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// relay is one attempt over the relay lane: it calls the engine of a grant and passes its
// answer on. It owns the grant.
type relay struct {
	p       *pass
	waiter  *holdstate.Waiter // nil: the request has not waited
	answer  *answer
	grant   holdstate.Grant
	engine  Engine
	failing bool              // the engine answered with an error, after which the answer is cut
	events  lastEvent         // of a stream
	begun   bool              // a part of the engine's body has come
	usage   *body.UsageReader // nil: the usage is not read
}

// result is the result of a call of the engine.
type result struct {
	resp *http.Response
	err  error
}

// piece is a part of the engine's body; a nil error means that more may follow.
type piece struct {
	data []byte
	err  error
}

// run calls the engine and passes its answer on. again is true when the engine refused the
// request, or died before it answered, and the request waits again.
func (r *relay) run() (again bool, err error) {
	p := r.p
	defer r.grant.Release()
	p.hasSlot(r.grant)
	p.flight.note(func(rec *Record) { rec.Grant = r.grant })
	ctx, cancel := context.WithCancel(p.gs.Context())
	defer cancel()
	r.engine = p.engine(r.grant)
	if p.to.throughGateway() {
		r.engine.NotTaken = cmp.Or(r.engine.NotTaken, gatewayNotTaken)
	}
	res, left := r.untilHead(r.call(ctx), cancel)
	if left {
		return false, nil
	}
	if res.err != nil {
		return false, r.callFailed(res.err)
	}
	defer func() { _ = res.resp.Body.Close() }()
	flags := r.flags(res.resp)
	switch {
	case r.engine.notTaken(res.resp):
		how := r.whyNotTaken(res.resp, cancel)
		_ = res.resp.Body.Close() // before the slot is released
		return r.failed(how)
	case flags == "":
		r.report(holdstate.Done)
		p.upload.free() // the engine has the whole request, or does not want it
		return false, r.passOn(ctx, res.resp)
	case hasFlag(flags, "UPE"):
		return false, r.refuse(refusal.InvalidAnswer(p.req.Model))
	case hasFlag(flags, refusedFlags...):
		return r.failed(failRefused)
	case hasFlag(flags, diedFlags...):
		return r.failed(failDied)
	default:
		return false, r.refuse(refusal.LaneRefused(res.resp.StatusCode))
	}
}

// callFailed handles a call without an answer. The replica is not the cause: if it fails,
// the lane answers, with flags.
func (r *relay) callFailed(err error) error {
	if r.p.canceled() {
		r.left()
		return nil
	}
	r.p.s.d.Log.Error().Err(err).Msg("calling an engine through --relay: does it lead to the running Envoy?")
	return r.refuse(refusal.BackendError(r.p.req.Model))
}

// report reports an event to the waiter, if there is one.
func (r *relay) report(e holdstate.Event) {
	if r.waiter != nil {
		r.waiter.Report(e)
	}
}

// refuse ends the request with a refusal.
func (r *relay) refuse(why *refusal.Refusal) error {
	r.report(holdstate.Done)
	return r.answer.fail(why)
}

// call calls the engine. The channel that it returns gets one result.
func (r *relay) call(ctx context.Context) <-chan result {
	results := make(chan result, 1)
	req, to := r.request(ctx), r.p.s.d.Relay
	if r.p.to.throughGateway() {
		to = r.p.s.d.Gateway
		if err := r.addTicket(req); err != nil {
			results <- result{err: err}
			return results
		}
	}
	go func() {
		resp, err := to.RoundTrip(req) //nolint:bodyclose // closed by the receiver of the result
		results <- result{resp: resp, err: err}
	}()
	return results
}

// untilHead waits for the head of the engine's answer. left is true when the client left
// first. Then it cancels the call and waits until it has ended, so that the slot is not
// released while the engine still works.
func (r *relay) untilHead(results <-chan result, cancel context.CancelFunc) (res result, left bool) {
	for !left {
		select {
		case res := <-results:
			return res, false
		case <-r.answer.tick:
			left = !r.answer.keepalive()
		case <-r.p.gone:
			left = true
		}
	}
	r.left()
	cancel()
	if res = <-results; res.err == nil {
		_ = res.resp.Body.Close()
	}
	return res, true
}

// left ends the attempt of a client that left before the engine's head.
func (r *relay) left() {
	r.p.left()
	r.report(holdstate.Leave)
}

// failed gives the replica up. again is true unless the request must not be sent to another
// replica.
func (r *relay) failed(how failure) (again bool, err error) {
	if why := r.p.flight.giveUp(r.grant, how, r.p.req.Model); why != nil {
		return false, r.refuse(why)
	}
	r.report(holdstate.Back)
	return true, nil
}

// passOn passes the engine's answer on.
func (r *relay) passOn(ctx context.Context, resp *http.Response) error {
	p := r.p
	p.flight.note(func(rec *Record) { rec.Status = resp.StatusCode })
	isError := resp.StatusCode >= http.StatusMultipleChoices // a redirect counts as one
	switch {
	case !r.answer.committed:
		r.answer.tick = nil // the engine's head is the first byte
		if !r.answer.begin(resp) {
			return nil
		}
	case isError && (p.req.Stream || notJSON(resp)): // the head that was sent promises events or JSON
		resp.Body = body.DecodedAnswer(resp)
		return r.passError(resp)
	default:
		resp.Body = body.DecodedAnswer(resp)
		r.failing = isError && r.answer.isCut()
	}
	r.usage = r.usageReader(resp)
	defer r.noteUsage()
	pieces := readPieces(ctx, resp.Body)
	var total int64
	for {
		select {
		case next := <-pieces:
			r.answer.tick = nil // no keepalive may be inside of the engine's body
			total += int64(len(next.data))
			if done, err := r.passPiece(next, total); done {
				return err
			}
		case <-r.answer.tick:
			if !r.answer.keepalive() {
				r.leftDuringAnswer()
				return nil
			}
		case <-p.gone:
			r.leftDuringAnswer()
			return nil
		}
	}
}

// notJSON reports whether an answer says that it is something else, as the errors of proxies in
// front of engines do.
func notJSON(resp *http.Response) bool {
	contentType := resp.Header.Get("Content-Type")
	return contentType != "" && !strings.Contains(contentType, "json")
}

// leftDuringAnswer records that the client left, unless it has the whole answer.
func (r *relay) leftDuringAnswer() {
	if !r.events.passed {
		r.p.left()
	}
}

// passPiece sends a piece of the engine's body. total is how many bytes of the body were
// read, this piece included. done is true when nothing more can be sent.
func (r *relay) passPiece(next piece, total int64) (done bool, err error) {
	end := errors.Is(next.err, io.EOF)
	r.readAlong(next.data)
	switch {
	case total > r.p.s.o.RelayMaxBytes:
		return true, r.answer.failBroken(fmt.Sprintf("the answer is larger than %d bytes", r.p.s.o.RelayMaxBytes))
	case next.err != nil && !end && r.p.canceled():
		r.leftDuringAnswer() // the call ended because the client left
		return true, nil
	case next.err != nil && !end:
		r.answer.send(next.data, false)
		if errors.Is(next.err, body.ErrUndecodable) {
			return true, r.answer.failBroken(body.ErrUndecodable.Error())
		}
		return true, r.answer.failBroken("the engine ended its answer half way")
	}
	if !r.answer.send(next.data, end && !r.failing) {
		r.leftDuringAnswer()
		return true, nil
	}
	if r.p.req.Stream {
		r.events.add(next.data)
	}
	if end && r.failing {
		return true, abort("backend_error")
	}
	return end, nil
}

// passError passes an engine's error on in a stream that has begun. It sends keepalives
// while it reads the error, which may arrive slowly.
func (r *relay) passError(resp *http.Response) error {
	refusals := make(chan *refusal.Refusal, 1)
	go func() { refusals <- refusal.FromEngine(resp.StatusCode, resp.Body) }()
	for {
		select {
		case why := <-refusals:
			return r.answer.failLate(why)
		case <-r.answer.tick:
			if !r.answer.keepalive() {
				r.p.left()
				return nil
			}
		case <-r.p.gone:
			r.p.left()
			return nil
		}
	}
}

// pieceSize is large enough for many events, and small enough for two buffers per relay.
const pieceSize = 16 << 10

// readPieces starts a goroutine that reads an answer until its end, or until ctx ends. A
// piece is valid until the next one is received.
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
				continue // a decoder needs more bytes
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
