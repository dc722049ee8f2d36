// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/peer"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// flushTime is how long sending the last messages to an agent may take.
const flushTime = time.Second

// Service is the gRPC service that agents connect to.
func (r *Registry) Service() pb.AgentRegistryServer { return &service{registry: r} }

// OwnService is Service for the backends of this process's configuration: their engines may
// have any address, and their ids may begin with protocol.BackendPrefix.
func (r *Registry) OwnService() pb.AgentRegistryServer { return &service{registry: r, own: true} }

type service struct {
	pb.UnimplementedAgentRegistryServer

	registry *Registry
	own      bool
	passedOn bool // of the router that has replaced this one
}

type stream = pb.AgentRegistry_ConnectServer

// Connect serves the stream of one agent: one goroutine sends, one receives, and this one
// waits for the end of the session.
func (s *service) Connect(st stream) error {
	if id := formerOf(st); id != "" && !s.own && id != s.registry.routerID {
		return s.passOn(st, id)
	}
	r := s.registry
	sess := newSession()
	sess.own = s.own
	if !r.addSession(sess) {
		return sess.result()
	}

	stop := context.AfterFunc(st.Context(), func() { sess.end(errClosed) })
	defer stop()
	hello := time.AfterFunc(r.opts.Liveness, func() { sess.end(errNoHello) })
	defer hello.Stop()

	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		r.write(sess, st)
	}()
	go func() { sess.end(s.read(st, sess, hello)) }()

	<-sess.done
	r.removeSession(sess)
	timer := time.NewTimer(flushTime)
	defer timer.Stop()
	select {
	case <-flushed:
	case <-st.Context().Done():
	case <-timer.C:
	}
	return sess.result()
}

// read reads the Hello, registers the agent, and handles its messages until the stream
// ends. It returns why it ended.
func (s *service) read(st stream, sess *session, timeout *time.Timer) error {
	m, err := st.Recv()
	if err != nil {
		return errClosed
	}
	timeout.Stop()
	r := s.registry
	h, rej := s.check(m.GetHello(), peerOf(st.Context()))
	if rej != nil {
		r.opts.Log.Warn().Str("code", rej.code).Str("problem", rej.message).Msg("agent rejected")
		return rej
	}
	a, err := r.join(h, sess)
	if err != nil {
		return err
	}
	return handleMessages(st, a)
}

// allNetworks contains all addresses.
var allNetworks = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// check checks a Hello by the rules of this service. An id of a backend is not accepted
// from another process: it would get the backend's requests, with the backend's key.
func (s *service) check(m *pb.Hello, from peerAddr) (hello, *rejected) {
	if s.own {
		return checkHello(m, from, allNetworks)
	}
	if strings.HasPrefix(m.GetAgentId(), protocol.BackendPrefix) {
		return hello{}, &rejected{code: protocol.CodeInvalidHello, message: "agent_id: must not begin with " + protocol.BackendPrefix + ": these are the router's own"}
	}
	if s.passedOn {
		return checkHello(m, from, allNetworks)
	}
	return checkHello(m, from, s.registry.opts.AllowCIDR)
}

// handleMessages handles the agent's messages until the stream ends.
func handleMessages(st stream, a *registration) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return errClosed
		}
		switch m := m.GetMessage().(type) {
		case *pb.AgentMessage_Status:
			a.onStatus(m.Status)
		case *pb.AgentMessage_WakeResult:
			a.onWakeResult(m.WakeResult)
		case *pb.AgentMessage_Bye:
			a.onBye()
		case *pb.AgentMessage_Hello:
			return &rejected{code: protocol.CodeInvalidHello, message: "a stream carries one Hello"}
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
