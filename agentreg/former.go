// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"context"
	"errors"
	"io"
	"maps"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// RouterID returns the id of this router, which is new at each start.
func (r *Registry) RouterID() string { return r.routerID }

// SetFormer sets the routers that this one has replaced and that still have requests: the paths
// of their sockets for FormerService, by router id. Agents open streams to them over this router.
func (r *Registry) SetFormer(sockets map[string]string) {
	r.update(func() {
		for id := range sockets {
			if _, known := r.former[id]; known {
				continue
			}
			for s := range r.sessions {
				if s.agent != nil && !s.own {
					s.send(former(id))
				}
			}
		}
		r.former = maps.Clone(sockets)
	})
}

// tellFormer tells a new agent of the routers that this one has replaced.
func (r *Registry) tellFormer(s *session) {
	if s.own {
		return
	}
	for id := range r.former {
		s.send(former(id))
	}
}

func former(id string) *pb.RouterMessage {
	return &pb.RouterMessage{Message: &pb.RouterMessage_Former{Former: &pb.Former{RouterId: id}}}
}

// formerSocket returns the socket of a router that this one has replaced.
func (r *Registry) formerSocket(id string) (path string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path, ok = r.former[id]
	return path, ok
}

// FormerService is Service for streams that the router that has replaced this one passes on. It
// has checked the agents' tokens and addresses.
func (r *Registry) FormerService() pb.AgentRegistryServer {
	return &service{registry: r, passedOn: true}
}

// formerOf returns the id of the router that a stream is meant for; empty: this one.
func formerOf(st stream) string {
	if ids := metadata.ValueFromIncomingContext(st.Context(), protocol.RouterKey); len(ids) == 1 {
		return ids[0]
	}
	return ""
}

// passOn passes a stream on to a router that this one has replaced.
func (s *service) passOn(st stream, id string) error {
	path, ok := s.registry.formerSocket(id)
	if !ok || s.passedOn {
		return status.Error(codes.Unavailable, "the router that the stream is meant for has ended")
	}
	m, err := s.firstMessage(st)
	if err != nil {
		return err
	}
	if _, rej := s.check(m.GetHello(), peerOf(st.Context())); rej != nil {
		return status.Error(codes.InvalidArgument, rej.Error())
	}
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	to, err := pb.NewAgentRegistryClient(conn).Connect(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the agent gets the status of the other router
	}
	if err := to.Send(m); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	go func() {
		copyToFormer(st, to)
	}()
	return copyFromFormer(st, to)
}

// firstMessage receives the first message of a stream, which must come in time.
func (s *service) firstMessage(st stream) (*pb.AgentMessage, error) {
	got := make(chan *pb.AgentMessage, 1)
	go func() { // it ends with the stream
		m, _ := st.Recv()
		got <- m
	}()
	limit := time.NewTimer(s.registry.opts.Liveness)
	defer limit.Stop()
	select {
	case m := <-got:
		if m == nil {
			return nil, status.Error(codes.InvalidArgument, errNoHello.Error())
		}
		return m, nil
	case <-limit.C:
		return nil, status.Error(codes.DeadlineExceeded, errNoHello.Error())
	}
}

// copyToFormer passes the agent's messages on until it ends the stream.
func copyToFormer(st stream, to pb.AgentRegistry_ConnectClient) {
	for {
		m, err := st.Recv()
		if err != nil {
			_ = to.CloseSend()
			return
		}
		if to.Send(m) != nil {
			return // copyFromFormer finds why
		}
	}
}

// copyFromFormer passes the other router's messages on until it ends the stream.
func copyFromFormer(st stream, to pb.AgentRegistry_ConnectClient) error {
	for {
		m, err := to.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = st.Send(m)
		}
		if err != nil {
			return err //nolint:wrapcheck // the agent gets the status of the other router
		}
	}
}
