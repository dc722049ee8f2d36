// SPDX-License-Identifier: Apache-2.0

// Package agentregtest has an agent that a test plays, for a registry in a bubble of
// testing/synctest.
package agentregtest

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing/synctest"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// Agent is the stream of an agent to a registry. It sends what a test says.
type Agent struct {
	grpc.ServerStream

	ctx   context.Context
	leave context.CancelFunc
	sent  chan *pb.AgentMessage
	seq   atomic.Uint64 // of the last message of the registry that has one
}

// AddressOf returns the address of the engine of an agent, whose id is one letter.
func AddressOf(id string) string { return fmt.Sprintf("127.0.0.1:%d", 8000+int(id[0]-'a')) }

// Join registers an agent that serves, whose id is one letter. It leaves when ctx ends.
func Join(ctx context.Context, r *agentreg.Registry, id, region string, slots uint32, models, kinds []string) *Agent {
	a := Connect(ctx, r, id, region, slots, models, kinds)
	synctest.Wait()
	return a
}

// Connect is Join outside of a bubble: the agent will be registered soon.
func Connect(ctx context.Context, r *agentreg.Registry, id, region string, slots uint32, models, kinds []string) *Agent {
	ctx, leave := context.WithCancel(ctx)
	a := &Agent{ctx: ctx, leave: leave, sent: make(chan *pb.AgentMessage, 1)}
	a.sent <- &pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: &pb.Hello{
		AgentId: id, Instance: uuid.NewString(), Address: AddressOf(id), Models: models, Kinds: kinds,
		Slots: slots, Engine: "custom", Region: region, State: pb.State_STATE_SERVING,
	}}}
	go func() { _ = r.OwnService().Connect(a) }()
	return a
}

// Leave ends the stream.
func (a *Agent) Leave() { a.leave() }

// Report sends a status of a healthy engine, which answers the registry's last message.
func (a *Agent) Report(state pb.State) {
	synctest.Wait()
	a.sent <- &pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: &pb.Status{
		State: state, Healthy: true, Handled: a.seq.Load(),
	}}}
	synctest.Wait()
}

// Offer sends a status of a healthy engine that serves, with this router's share of its slots.
func (a *Agent) Offer(share uint32) {
	synctest.Wait()
	a.sent <- &pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: &pb.Status{
		State: pb.State_STATE_SERVING, Healthy: true, Handled: a.seq.Load(), Slots: &share,
	}}}
	synctest.Wait()
}

// Context is part of the stream.
func (a *Agent) Context() context.Context { return a.ctx }

// Recv is part of the stream.
func (a *Agent) Recv() (*pb.AgentMessage, error) {
	select {
	case m := <-a.sent:
		return m, nil
	case <-a.ctx.Done():
		return nil, io.EOF
	}
}

// Send is part of the stream. One goroutine of the registry calls it.
func (a *Agent) Send(m *pb.RouterMessage) error {
	a.seq.Store(max(a.seq.Load(), m.GetStatusRequest().GetSeq(), m.GetWake().GetSeq(), m.GetSleep().GetSeq()))
	return nil
}
