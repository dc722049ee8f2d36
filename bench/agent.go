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

// agentSlots is more than the benchmark ever sends at once: the release is measured,
// not an engine's queue.
const agentSlots = 65536

// agent is an agent without an engine.
type agent struct {
	conn     *grpc.ClientConn
	stream   agentregpb.AgentRegistry_ConnectClient
	cancel   context.CancelFunc
	state    agentregpb.State        // serving, unless it is set to asleep before join
	edit     func(*agentregpb.Hello) // changes the Hello of join; may be nil
	sending  sync.Mutex              // a gRPC stream allows one sender at a time
	joined   bool
	ended    chan struct{}
	accepted chan error
	woken    chan time.Time // the time of the first Wake
}

// dialAgent opens the connection and the stream, so that join costs one message, as for
// an agent that was connected while its engine woke.
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

// join registers the model as served, or as asleep, at address, and returns the time
// just before it sent Hello.
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

// waitWelcome waits for the router's answer to Hello.
func (a *agent) waitWelcome(ctx context.Context) error {
	select {
	case err := <-a.accepted:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for Welcome: %w", ctx.Err())
	}
}

// leave ends the registration and returns when the router has ended the stream, which
// it does after taking the agent out of routing.
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

// serve answers the router's messages and sends the heartbeats it requests.
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
			handled = max(handled, a.handle(message, heartbeat))
		case <-heartbeat.C:
			_ = a.status(handled)
		}
	}
}

// handle acts on one message and returns its number, 0 for messages without one.
func (a *agent) handle(message *agentregpb.RouterMessage, heartbeat *time.Ticker) uint64 {
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

// settle passes the result of the registration to waitWelcome; only the first result
// counts.
func (a *agent) settle(err error) {
	select {
	case a.accepted <- err:
	default:
	}
}

// status reports the engine's state. Its error needs no separate report: the stream has
// ended then, and the reader reports that.
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
