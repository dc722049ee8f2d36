// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdgate/holdgate/agentreg/agentregpb"
)

// agentSlots is more than the benchmark ever sends at once: what is measured
// is the release, not an engine's queue.
const agentSlots = 65536

// agent is an engine's presence at the router, without the engine.
type agent struct {
	conn     *grpc.ClientConn
	stream   agentregpb.AgentRegistry_ConnectClient
	cancel   context.CancelFunc
	state    agentregpb.State        // serving, or asleep when it is set before join
	edit     func(*agentregpb.Hello) // changes what join says; nil: nothing
	sending  sync.Mutex              // a gRPC stream takes one sender at a time
	joined   bool
	ended    chan struct{}
	accepted chan error
	woken    chan time.Time // the first Wake that has come
}

// dialAgent opens the connection and the stream, so that join costs one
// message, as it does for an agent that was connected while its engine woke.
func dialAgent(ctx context.Context, router string) (*agent, error) {
	conn, err := grpc.NewClient(router, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting to the agent service: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := agentregpb.NewAgentRegistryClient(conn).Connect(ctx, grpc.WaitForReady(true))
	if err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("opening the agent's stream: %w", err), conn.Close())
	}
	return &agent{
		conn: conn, stream: stream, cancel: cancel, state: agentregpb.State_STATE_SERVING,
		ended: make(chan struct{}), accepted: make(chan error, 1), woken: make(chan time.Time, 1),
	}, nil
}

// join registers the model as served at address, or as asleep there, and returns
// the moment just before it said so.
func (a *agent) join(address string) (time.Time, error) {
	hello := &agentregpb.Hello{
		AgentId: "bench", Instance: uuid.NewString(), Address: address,
		Models: []string{benchModel}, Kinds: []string{"chat"}, Slots: agentSlots,
		Engine: "custom", Region: "local", State: a.state, CanWake: a.state == agentregpb.State_STATE_ASLEEP,
	}
	if a.edit != nil {
		a.edit(hello)
	}
	begin := time.Now()
	err := a.send(&agentregpb.AgentMessage{Message: &agentregpb.AgentMessage_Hello{Hello: hello}})
	if err != nil {
		return begin, fmt.Errorf("sending Hello: %w", err)
	}
	a.joined = true
	go a.serve()
	return begin, nil
}

// welcomed waits for the router's answer to Hello.
func (a *agent) welcomed(ctx context.Context) error {
	select {
	case err := <-a.accepted:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for Welcome: %w", ctx.Err())
	}
}

// leave ends the registration and returns when the router has ended the stream,
// which it does when it has taken the agent out of routing.
func (a *agent) leave() error {
	defer a.cancel()
	if a.joined {
		_ = a.send(&agentregpb.AgentMessage{Message: &agentregpb.AgentMessage_Bye{Bye: &agentregpb.Bye{}}})
		_ = a.stream.CloseSend()
		timer := time.NewTimer(stopGrace)
		defer timer.Stop()
		select {
		case <-a.ended:
		case <-timer.C:
		}
	}
	return a.conn.Close()
}

// serve answers the router and sends the heartbeats it asks for.
func (a *agent) serve() {
	defer close(a.ended)
	heartbeat := time.NewTicker(time.Hour)
	defer heartbeat.Stop()
	messages := make(chan *agentregpb.RouterMessage)
	go func() {
		defer close(messages)
		for {
			message, err := a.stream.Recv()
			if err != nil {
				return
			}
			messages <- message
		}
	}()
	var handled uint64
	for {
		select {
		case message, open := <-messages:
			if !open {
				a.settle(errors.New("the router ended the agent's stream"))
				return
			}
			handled = max(handled, a.take(message, heartbeat))
		case <-heartbeat.C:
			_ = a.status(handled)
		}
	}
}

// take acts on one message and gives its number, 0 for those without.
func (a *agent) take(message *agentregpb.RouterMessage, heartbeat *time.Ticker) uint64 {
	switch m := message.GetMessage().(type) {
	case *agentregpb.RouterMessage_Welcome:
		heartbeat.Reset(max(m.Welcome.GetHeartbeat().AsDuration(), 10*time.Millisecond))
		a.settle(a.status(0))
	case *agentregpb.RouterMessage_Reject:
		a.settle(fmt.Errorf("the router refused the agent: %s: %s", m.Reject.GetCode(), m.Reject.GetMessage()))
	case *agentregpb.RouterMessage_Wake:
		select {
		case a.woken <- time.Now():
		default:
		}
		if a.state == agentregpb.State_STATE_ASLEEP {
			a.state = agentregpb.State_STATE_WAKING
		}
		_ = a.status(m.Wake.GetSeq())
		return m.Wake.GetSeq()
	case *agentregpb.RouterMessage_Sleep:
		_ = a.status(m.Sleep.GetSeq())
		return m.Sleep.GetSeq()
	case *agentregpb.RouterMessage_StatusRequest:
		_ = a.status(m.StatusRequest.GetSeq())
		return m.StatusRequest.GetSeq()
	}
	return 0
}

// settle tells welcomed how the registration went; only the first word counts.
func (a *agent) settle(err error) {
	select {
	case a.accepted <- err:
	default:
	}
}

// status says what the engine does. An error needs no report of its own: the
// stream has ended then, and the reader says so.
func (a *agent) status(handled uint64) error {
	return a.send(&agentregpb.AgentMessage{Message: &agentregpb.AgentMessage_Status{Status: &agentregpb.Status{
		State: a.state, Healthy: true, Handled: handled, Routers: 1,
	}}})
}

func (a *agent) send(message *agentregpb.AgentMessage) error {
	a.sending.Lock()
	defer a.sending.Unlock()
	return a.stream.Send(message)
}
