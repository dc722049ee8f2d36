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
	// byeTime is how long the last words may take.
	byeTime = time.Second
	// minHeartbeat is the shortest heartbeat that is taken from a router.
	minHeartbeat = 10 * time.Millisecond
)

// errMoved ends a stream whose Hello has named an address where the engine is no more.
var errMoved = errors.New("the engine has another address")

// conversation is one stream with a router.
type conversation struct {
	link     *link
	stream   pb.AgentRegistry_ConnectClient
	end      func() // the stream
	session  *session
	in       chan *pb.RouterMessage // closed by the reader
	readErr  error                  // valid once in is closed
	every    time.Duration          // how often the router wants to hear
	welcomed bool
}

// run says Hello and then what core has to say, and passes on what the router
// says, until either side ends.
func (c *conversation) run(ctx context.Context) error {
	core := c.link.agent.core
	hello := core.open(c.session)
	defer core.close(c.session)
	go c.read()
	if err := c.say(hello); err != nil {
		return err
	}
	if err := c.greet(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	heartbeat := time.NewTicker(c.every)
	defer heartbeat.Stop()
	for {
		select {
		case <-ctx.Done():
			return c.bye()
		case m, ok := <-c.in:
			if !ok {
				return c.readErr
			}
			if err := c.take(ctx, m); err != nil {
				return err
			}
			continue
		case <-c.session.notify:
		case <-heartbeat.C:
		}
		if core.moved(c.session) {
			return errMoved
		}
		if err := c.say(core.next(c.session)...); err != nil {
			return err
		}
	}
}

// greet waits for the Welcome.
func (c *conversation) greet(ctx context.Context) error {
	c.every = protocol.Heartbeat(protocol.DefaultLiveness)
	timeout := time.NewTimer(welcomeTime)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return c.bye()
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
			c.every = every
		}
		return c.take(ctx, m)
	}
}

// take acts on one message of the router.
func (c *conversation) take(ctx context.Context, m *pb.RouterMessage) error {
	a := c.link.agent
	switch m := m.GetMessage().(type) {
	case *pb.RouterMessage_Welcome:
		c.welcomed = true
		c.link.router = m.Welcome.GetRouterId()
		clear(c.link.logged)
		a.core.welcome(c.session, c.link.router)
		a.log.Info().Str("router", c.link.address).Msg("registered with the router")
	case *pb.RouterMessage_Reject:
		return &RejectedError{Router: c.link.address, Code: m.Reject.GetCode(), Message: m.Reject.GetMessage()}
	case *pb.RouterMessage_Wake:
		a.core.onWake(c.session, m.Wake)
	case *pb.RouterMessage_Sleep:
		a.core.onSleep(c.session, m.Sleep.GetSeq())
		a.log.Debug().Str("router", c.link.address).Msg("a router let the engine go")
	case *pb.RouterMessage_StatusRequest:
		// Not here: a check may take its time, and a Wake must not wait for it.
		a.background.Go(func() { a.recheck(ctx, c.session, m.StatusRequest.GetSeq()) })
	}
	return nil
}

// say sends messages. A stream that has ended is no error here: the reader
// knows why it ended.
func (c *conversation) say(messages ...*pb.AgentMessage) error {
	for _, m := range messages {
		if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("sending to the router: %w", err)
		}
	}
	return nil
}

// bye takes leave. The router ends the stream when it has heard it and none of
// its requests is in the engine, for which an agent that stops the engine waits.
func (c *conversation) bye() error {
	if err := c.say(&pb.AgentMessage{Message: &pb.AgentMessage_Bye{Bye: &pb.Bye{}}}); err != nil {
		return err
	}
	if patience := c.link.agent.patience(); patience > 0 && c.welcomed {
		if err := c.linger(patience); err != nil {
			return err
		}
	}
	if err := c.stream.CloseSend(); err != nil {
		return fmt.Errorf("ending the stream: %w", err)
	}
	over := time.AfterFunc(byeTime, c.end)
	defer over.Stop()
	c.drain()
	return nil
}

// linger goes on with heartbeats until the router ends the stream, for a time.
// What the router still says is of no matter to an agent that leaves.
func (c *conversation) linger(atMost time.Duration) error {
	enough := time.NewTimer(atMost)
	defer enough.Stop()
	heartbeat := time.NewTicker(c.every)
	defer heartbeat.Stop()
	for {
		select {
		case _, ok := <-c.in:
			if !ok {
				return nil
			}
			continue
		case <-enough.C:
			c.link.agent.log.Warn().Str("router", c.link.address).Stringer("after", atMost.Round(time.Millisecond)).Msg("requests of the router are cut: their time is over")
			return nil
		case <-c.session.notify:
		case <-heartbeat.C:
		}
		if err := c.say(c.link.agent.core.next(c.session)...); err != nil {
			return err
		}
	}
}

// drain drops the router's messages until the stream has ended.
func (c *conversation) drain() {
	for range c.in {
	}
}

// read hands over the router's messages until the stream ends.
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
