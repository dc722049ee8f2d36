// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

const (
	// welcomeTime is how long a router may take to answer a Hello.
	welcomeTime = 10 * time.Second
	// byeTime is how long the end of a stream may take.
	byeTime = time.Second
	// minHeartbeat is the shortest heartbeat that is accepted from a router.
	minHeartbeat = 10 * time.Millisecond
)

// errMoved ends a stream whose Hello has an old address of the engine.
var errMoved = errors.New("the engine has another address")

// conversation is one stream with a router.
type conversation struct {
	link      *link
	stream    pb.AgentRegistry_ConnectClient
	end       func() // ends the stream
	session   *session
	in        chan *pb.RouterMessage // closed by the reader
	readErr   error                  // valid once in is closed
	heartbeat time.Duration          // how often the router wants a Status
	welcomed  bool
}

// run sends the Hello and then the messages of core, and handles the messages of the router,
// until either side ends the stream.
func (c *conversation) run(ctx context.Context) (err error) {
	core := c.link.agent.core
	hello := core.addSession(c.session)
	defer func() { core.removeSession(c.session, err) }()
	go c.read()
	if err := c.send(hello); err != nil {
		return err
	}
	if err := c.awaitWelcome(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	heartbeat := time.NewTicker(c.heartbeat)
	defer heartbeat.Stop()
	for {
		select {
		case <-ctx.Done():
			return c.leave()
		case m, ok := <-c.in:
			if !ok {
				return c.readErr
			}
			if err := c.handle(ctx, m); err != nil {
				return err
			}
			continue
		case <-c.session.changed:
		case <-heartbeat.C:
		}
		if core.addressChanged(c.session) {
			return errMoved
		}
		if err := c.send(core.messages(c.session)...); err != nil {
			return err
		}
	}
}

// awaitWelcome waits for the Welcome.
func (c *conversation) awaitWelcome(ctx context.Context) error {
	c.heartbeat = protocol.Heartbeat(protocol.DefaultLiveness)
	timeout := time.NewTimer(welcomeTime)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return c.leave()
	case <-timeout.C:
		return errors.New("the router does not answer")
	case m, ok := <-c.in:
		switch {
		case !ok:
			return c.readErr
		case m.GetWelcome() == nil && m.GetReject() == nil:
			return errors.New("the router answers with something other than Welcome")
		}
		if every := m.GetWelcome().GetHeartbeat().AsDuration(); every >= minHeartbeat {
			c.heartbeat = every
		}
		return c.handle(ctx, m)
	}
}

// handle acts on one message of the router.
func (c *conversation) handle(ctx context.Context, m *pb.RouterMessage) error {
	a := c.link.agent
	switch m := m.GetMessage().(type) {
	case *pb.RouterMessage_Welcome:
		c.welcomed = true
		c.link.router = m.Welcome.GetRouterId()
		clear(c.link.logged)
		a.core.setRouter(c.session, m.Welcome, 3*c.heartbeat)
		a.log.Info().Str("router", c.link.address).Msg("registered with the router")
	case *pb.RouterMessage_Reject:
		return &RejectedError{Router: c.link.address, Code: m.Reject.GetCode(), Message: m.Reject.GetMessage()}
	case *pb.RouterMessage_Wake:
		a.core.onWake(c.session, m.Wake)
	case *pb.RouterMessage_Sleep:
		a.core.onSleep(c.session, m.Sleep.GetSeq())
		a.log.Debug().Str("router", c.link.address).Msg("a router released the engine")
	case *pb.RouterMessage_Former:
		c.link.connectFormer(m.Former.GetRouterId())
	case *pb.RouterMessage_Successor:
		c.link.succeed()
	case *pb.RouterMessage_Usage:
		a.core.onUsage(c.session, m.Usage)
	case *pb.RouterMessage_StatusRequest:
		// Not in this goroutine: a Wake must not wait for the check.
		a.background.Go(func() { a.recheck(ctx, c.session, m.StatusRequest.GetSeq()) })
	}
	return nil
}

// send sends messages. It returns no error if the stream has ended: readErr says why.
func (c *conversation) send(messages ...*pb.AgentMessage) error {
	for _, m := range messages {
		if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("sending to the router: %w", err)
		}
	}
	return nil
}

// leave sends Bye and ends the stream. The router ends it when its last request in the engine
// has ended; an agent that stops its engine waits for that.
func (c *conversation) leave() error {
	if err := c.send(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}}); err != nil {
		return err
	}
	if timeout := c.link.agent.drainTimeout(); timeout > 0 && c.welcomed {
		if err := c.awaitEnd(timeout); err != nil {
			return err
		}
	}
	if err := c.stream.CloseSend(); err != nil {
		return fmt.Errorf("ending the stream: %w", err)
	}
	timer := time.AfterFunc(byeTime, c.end)
	defer timer.Stop()
	c.discardMessages()
	return nil
}

// awaitEnd sends heartbeats until the router ends the stream or the timeout passes. It
// ignores the router's messages, since the agent is leaving.
func (c *conversation) awaitEnd(timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	heartbeat := time.NewTicker(c.heartbeat)
	defer heartbeat.Stop()
	for {
		select {
		case _, ok := <-c.in:
			if !ok {
				return nil
			}
			continue
		case <-timer.C:
			c.link.agent.log.Warn().Str("router", c.link.address).Stringer("after", timeout.Round(time.Millisecond)).Msg("drain timeout reached, cutting the router's requests")
			return nil
		case <-c.session.changed:
		case <-heartbeat.C:
		}
		if err := c.send(c.link.agent.core.messages(c.session)...); err != nil {
			return err
		}
	}
}

// discardMessages discards the router's messages until the stream has ended.
func (c *conversation) discardMessages() {
	for range c.in {
	}
}

// read sends the router's messages to c.in until the stream ends.
func (c *conversation) read() {
	defer close(c.in)
	for {
		m, err := c.stream.Recv()
		if err != nil {
			c.readErr = fmt.Errorf("the stream ended: %w", err)
			return
		}
		select {
		case c.in <- m:
		case <-c.stream.Context().Done():
			c.readErr = fmt.Errorf("the stream ended: %w", c.stream.Context().Err())
			return
		}
	}
}
