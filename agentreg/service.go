// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// flushTime is how long the last words to an agent may take.
const flushTime = time.Second

// Service is the gRPC service that agents connect to.
func (r *Registry) Service() pb.AgentRegistryServer { return &service{registry: r} }

// OwnService is Service for this process alone, which stands for the backends that
// its configuration names: they may be at any address, and have the ids that begin
// with protocol.BackendPrefix.
func (r *Registry) OwnService() pb.AgentRegistryServer { return &service{registry: r, own: true} }

type service struct {
	pb.UnimplementedAgentRegistryServer

	registry *Registry
	own      bool
}

type stream = pb.AgentRegistry_ConnectServer

// Connect serves one agent: one goroutine sends, one receives, and this one
// waits for whatever ends the stream first.
func (s *service) Connect(st stream) error {
	r := s.registry
	sess := newSession()
	if !r.admit(sess) {
		return sess.result()
	}

	stop := context.AfterFunc(st.Context(), func() { sess.end(errClosed) })
	defer stop()
	hello := time.AfterFunc(r.opts.Liveness, func() { sess.end(errNoHello) })
	defer hello.Stop()

	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		sess.write(st)
	}()
	go func() { sess.end(s.read(st, sess, hello)) }()

	<-sess.done
	r.dismiss(sess)
	timer := time.NewTimer(flushTime)
	defer timer.Stop()
	select {
	case <-flushed:
	case <-st.Context().Done():
	case <-timer.C:
	}
	return sess.result()
}

// admit counts a stream in, so that Drain can end it. It reports false, with
// the session ended, when the router is draining.
func (r *Registry) admit(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		s.end(errDraining)
		return false
	}
	r.sessions[s] = struct{}{}
	return true
}

// dismiss counts an ended stream out, and its agent with it. A Hello that is
// being read still finds that its stream is gone.
func (r *Registry) dismiss(s *session) {
	r.update(func() {
		delete(r.sessions, s)
		if rec := s.agent; rec != nil && !rec.released {
			r.remove(rec, s.cause)
		}
	})
}

// read takes the Hello, registers the agent, and takes its messages until the
// stream ends. It returns why it ended.
func (s *service) read(st stream, sess *session, timeout *time.Timer) error {
	m, err := st.Recv()
	if err != nil {
		return errClosed
	}
	timeout.Stop()
	r := s.registry
	h, rej := s.check(m.GetHello(), peerOf(st.Context()))
	if rej != nil {
		r.log.Warn().Str("code", rej.code).Str("problem", rej.message).Msg("agent rejected")
		return rej
	}
	rec, err := r.join(h, sess)
	if err != nil {
		return err
	}
	return s.listen(st, rec)
}

// everywhere are all networks.
var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// check is checkHello by what this service allows. An agent that took a backend's id
// would get its requests, and its key.
func (s *service) check(m *pb.Hello, from peerAddr) (hello, *rejected) {
	if s.own {
		return checkHello(m, from, everywhere)
	}
	if strings.HasPrefix(m.GetAgentId(), protocol.BackendPrefix) {
		return hello{}, &rejected{code: protocol.CodeInvalidHello, message: "agent_id: must not begin with " + protocol.BackendPrefix + ": these are the router's own"}
	}
	return checkHello(m, from, s.registry.opts.AllowCIDR)
}

// listen takes the agent's messages until the stream ends.
func (s *service) listen(st stream, rec *registration) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return errClosed
		}
		switch m := m.GetMessage().(type) {
		case *pb.AgentMessage_Status:
			s.registry.statusFrom(rec, m.Status)
		case *pb.AgentMessage_WakeResult:
			s.registry.resultFrom(rec, m.WakeResult)
		case *pb.AgentMessage_Bye:
			s.registry.byeFrom(rec)
		case *pb.AgentMessage_Hello:
			return &rejected{code: protocol.CodeInvalidHello, message: "a stream carries one Hello"}
		}
	}
}

// welcome is the first message to an accepted agent.
func (r *Registry) welcome() *pb.RouterMessage {
	return &pb.RouterMessage{Message: &pb.RouterMessage_Welcome{Welcome: &pb.Welcome{
		RouterId: r.routerID, Heartbeat: durationpb.New(protocol.Heartbeat(r.opts.Liveness)),
	}}}
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

// peerAddr is the other end of a stream.
type peerAddr struct {
	ip    netip.Addr // invalid on a unix socket
	local bool       // loopback or unix socket
}

func peerOf(ctx context.Context) peerAddr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return peerAddr{}
	}
	if p.Addr.Network() == "unix" {
		return peerAddr{local: true}
	}
	tcp, ok := p.Addr.(*net.TCPAddr)
	if !ok {
		return peerAddr{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	return peerAddr{ip: ip, local: ip.IsLoopback()}
}
