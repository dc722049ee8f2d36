// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// The reasons why a stream ends, logged as the cause of "agent left".
var (
	errBye            = errors.New("sent Bye")
	errClosed         = errors.New("the stream ended")
	errSilent         = errors.New("no message for the liveness time")
	errUnacknowledged = errors.New("messages are not acknowledged")
	errOverflow       = errors.New("messages are not read")
	errReconnected    = errors.New("connected again")
	errSuperseded     = errors.New("superseded")
	errDraining       = errors.New("this router is shutting down")
	errNoHello        = errors.New("no Hello")
)

// rejected is the error that ends a stream with a Reject. The message says what the operator
// of the agent must change.
type rejected struct{ code, message string }

func (e *rejected) Error() string { return e.code + ": " + e.message }

var supersededReject = rejected{
	code:    protocol.CodeSuperseded,
	message: "another agent with this id has registered: give each agent an id of its own (--id)",
}

// outboxSize is how many messages to an agent may be queued. There are few: a Wake and the
// next Sleep are usually minutes apart.
const outboxSize = 32

// session is the sending end of one stream. Only Registry.write blocks.
type session struct {
	outbox chan *pb.RouterMessage
	done   chan struct{}
	once   sync.Once
	cause  error         // valid once done is closed
	own    bool          // of a backend of this process
	agent  *registration // once registered; guarded by the registry's mutex
	offer  uint64        // the last one that was taken into account; guarded by the same

	usageDue    chan struct{} // receives a token when a Usage may have to be sent
	lastUsage   *pb.Usage     // the last one that was sent; this and the next two are used only by write
	released    uint64        // slots that have been released since the first Usage
	releasedSum uint64        // what the gates say of that
}

func newSession() *session {
	return &session{
		outbox: make(chan *pb.RouterMessage, outboxSize), done: make(chan struct{}), usageDue: make(chan struct{}, 1),
	}
}

// addSession adds a stream, so that Drain can end it. If the router is draining already, it ends
// the session and returns false.
func (r *Registry) addSession(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		s.end(errDraining)
		return false
	}
	r.sessions[s] = struct{}{}
	return true
}

// removeSession removes a stream that has ended, and its agent. If its Hello is still being read,
// join finds that the stream is no longer there.
func (r *Registry) removeSession(s *session) {
	r.update(func() {
		delete(r.sessions, s)
		if a := s.agent; a != nil && !a.left {
			a.remove(s.cause)
		}
	})
}

// welcome returns the first message to an accepted agent.
func (r *Registry) welcome() *pb.RouterMessage {
	return &pb.RouterMessage{Message: &pb.RouterMessage_Welcome{Welcome: &pb.Welcome{
		RouterId: r.routerID, Heartbeat: durationpb.New(protocol.Heartbeat(r.opts.Liveness)), Usage: true,
	}}}
}

// send queues m. If the queue is full, since the agent reads too slowly, it ends the stream.
func (s *session) send(m *pb.RouterMessage) {
	select {
	case s.outbox <- m:
	default:
		s.end(errOverflow)
	}
}

// end ends the stream. Only the cause of the first call is kept.
func (s *session) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.done)
	})
}

// write sends the queued messages, and Usages when they are due, until the session ends, and
// then the farewell.
func (r *Registry) write(s *session, st stream) {
	due := s.usageDue
	var pause <-chan time.Time // while it runs, due is nil
	for {
		var m *pb.RouterMessage
		select {
		case m = <-s.outbox:
		case <-due:
			if len(s.outbox) > 0 { // the Welcome comes first
				s.tell()
			} else if m = r.nextUsage(s); m != nil {
				due, pause = nil, time.After(usagePause)
			}
		case <-pause:
			due, pause = s.usageDue, nil
		case <-s.done:
			if m = r.farewell(s); m != nil {
				_ = st.Send(m) // the agent may be gone already
			}
			return
		}
		if m == nil {
			continue
		}
		if err := st.Send(m); err != nil {
			s.end(errClosed)
			return
		}
	}
}

// farewell returns the last message of the stream: a Reject, or at a shutdown what this router
// still keeps of the slots. It is nil if there is none.
func (r *Registry) farewell(s *session) *pb.RouterMessage {
	var rej *rejected
	switch {
	case errors.As(s.cause, &rej):
	case errors.Is(s.cause, errSuperseded):
		rej = &supersededReject
	case errors.Is(s.cause, errDraining):
		return r.nextUsage(s)
	default:
		return nil
	}
	return &pb.RouterMessage{Message: &pb.RouterMessage_Reject{Reject: &pb.Reject{Code: rej.code, Message: rej.message}}}
}

// result returns the status that the stream ends with.
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
