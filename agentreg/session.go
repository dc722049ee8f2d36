// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// Why a stream ended: the cause of "agent left" in the log.
var (
	errBye         = errors.New("said goodbye")
	errClosed      = errors.New("the stream ended")
	errSilent      = errors.New("no message for the liveness time")
	errDeaf        = errors.New("messages are not acknowledged")
	errOverflow    = errors.New("messages are not read")
	errReconnected = errors.New("connected again")
	errSuperseded  = errors.New("superseded")
	errDraining    = errors.New("this router is shutting down")
	errNoHello     = errors.New("no Hello")
)

// rejected is the end of a stream with a Reject, which tells what to change.
type rejected struct{ code, message string }

func (e *rejected) Error() string { return e.code + ": " + e.message }

var supersededReject = rejected{
	code:    protocol.CodeSuperseded,
	message: "another agent with this id has registered: give each agent an id of its own (--id)",
}

// outboxSize is how many messages may wait for an agent. Messages are few: a
// wake and a sleep take minutes to follow each other.
const outboxSize = 32

// session is the sending end of one stream. None of its methods but write blocks.
type session struct {
	outbox chan *pb.RouterMessage
	done   chan struct{}
	once   sync.Once
	cause  error         // valid once done is closed
	agent  *registration // once registered; guarded by the registry's mutex
}

func newSession() *session {
	return &session{outbox: make(chan *pb.RouterMessage, outboxSize), done: make(chan struct{})}
}

// open adds a stream, so that Drain can end it. It reports false, with the session
// ended, when the router is draining.
func (r *Registry) open(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		s.end(errDraining)
		return false
	}
	r.sessions[s] = struct{}{}
	return true
}

// close removes an ended stream, and its agent with it. A Hello that is being read
// still finds that its stream is gone.
func (r *Registry) close(s *session) {
	r.update(func() {
		delete(r.sessions, s)
		if a := s.agent; a != nil && !a.left {
			a.remove(s.cause)
		}
	})
}

// welcome is the first message to an accepted agent.
func (r *Registry) welcome() *pb.RouterMessage {
	return &pb.RouterMessage{Message: &pb.RouterMessage_Welcome{Welcome: &pb.Welcome{
		RouterId: r.routerID, Heartbeat: durationpb.New(protocol.Heartbeat(r.opts.Liveness)),
	}}}
}

// send queues m, or ends the stream when the agent is too slow.
func (s *session) send(m *pb.RouterMessage) {
	select {
	case s.outbox <- m:
	default:
		s.end(errOverflow)
	}
}

// end ends the stream. The first cause is the one that counts.
func (s *session) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.done)
	})
}

// write sends what is queued until the stream ends, and then the farewell.
func (s *session) write(st stream) {
	for {
		select {
		case m := <-s.outbox:
			if err := st.Send(m); err != nil {
				s.end(errClosed)
				return
			}
		case <-s.done:
			if m := s.farewell(); m != nil {
				_ = st.Send(m) // the agent may be gone already
			}
			return
		}
	}
}

// farewell is the message that goes before the end of the stream, nil for none.
func (s *session) farewell() *pb.RouterMessage {
	var rej *rejected
	switch {
	case errors.As(s.cause, &rej):
	case errors.Is(s.cause, errSuperseded):
		rej = &supersededReject
	default:
		return nil
	}
	return &pb.RouterMessage{Message: &pb.RouterMessage_Reject{Reject: &pb.Reject{Code: rej.code, Message: rej.message}}}
}

// result is the stream's status.
func (s *session) result() error {
	var rej *rejected
	switch {
	case errors.Is(s.cause, errBye), errors.Is(s.cause, errClosed):
		return nil
	case errors.As(s.cause, &rej):
		return status.Error(codes.InvalidArgument, rej.Error())
	case errors.Is(s.cause, errSuperseded), errors.Is(s.cause, errReconnected):
		return status.Error(codes.Aborted, s.cause.Error())
	case errors.Is(s.cause, errSilent), errors.Is(s.cause, errNoHello):
		return status.Error(codes.DeadlineExceeded, s.cause.Error())
	}
	return status.Error(codes.Unavailable, s.cause.Error())
}
