// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// Why a stream ended. They are shown in the log as the cause of "agent left".
var (
	errBye         = errors.New("said goodbye")
	errClosed      = errors.New("the stream ended")
	errSilent      = errors.New("nothing heard for the liveness time")
	errDeaf        = errors.New("messages are not taken in")
	errOverflow    = errors.New("messages are not read")
	errReconnected = errors.New("connected again")
	errSuperseded  = errors.New("superseded")
	errDraining    = errors.New("this router is shutting down")
	errNoHello     = errors.New("no Hello")
)

// rejected is the end of a stream whose agent is told what to change.
type rejected struct{ code, message string }

func (e *rejected) Error() string { return e.code + ": " + e.message }

var supersededReject = rejected{
	code:    protocol.CodeSuperseded,
	message: "another agent with this id has registered: give each agent an id of its own (--id)",
}

// outboxSize is how many messages may wait for an agent. Messages are few: a
// wake and a sleep take minutes to follow each other.
const outboxSize = 32

// session is the sending end of one stream. Nothing it does blocks.
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
