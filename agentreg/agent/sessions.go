// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdgate/holdgate/agentreg/agent/divide"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// lostRouterTime is how long a router whose stream ended without a Sleep keeps an engine up
// that does not report its requests, since Envoy may still be sending their responses. An
// engine that reports them is stopped when it has none.
const lostRouterTime = 30 * time.Second

// session is the state of one router's stream in core.
type session struct {
	router   string             // the router's id
	address  string             // of the engine, in the Hello
	handled  uint64             // the highest seq of the router that was handled
	released bool               // the router's last command was Sleep
	wake     string             // the model of the last Wake
	slots    *divide.Router     // what it has of the slots
	liveness time.Duration      // after which the router takes the agent for lost
	pending  []*pb.AgentMessage // to be sent before the next Status
	changed  chan struct{}      // receives a token when there is something to send
}

// addSession adds a stream and returns its Hello. From then on the engine is not stopped before
// the router has sent Sleep.
func (c *core) addSession(s *session) *pb.AgentMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[s] = struct{}{}
	s.slots = c.ledger.Join()
	offer, share := s.slots.Offer()
	state := c.protocolState()
	if c.phase == stopping && !c.wantUp {
		// A Hello has no health, so the router would take an engine that is being stopped
		// for a healthy one.
		state = pb.State_STATE_ASLEEP
	}
	notify(s.changed) // the Status that follows the Hello has the health
	s.address = c.address
	cfg := &c.cfg
	hello := &pb.Hello{
		AgentId: cfg.ID, Instance: c.instance, Address: c.address,
		Models: cfg.Models, Kinds: cfg.Kinds, Slots: uint32(cfg.Slots), Share: new(uint32(share)), Offer: offer, //nolint:gosec // Validate bounds it
		Engine: cfg.Engine, Region: cfg.Region, Labels: cfg.Labels,
		State: state, CanWake: c.onDemand(), Group: cfg.Group.message(),
	}
	if cfg.IdleTimeout > 0 {
		hello.IdleTimeout = durationpb.New(cfg.IdleTimeout)
	}
	if cfg.MinUpTime > 0 {
		hello.MinUpTime = durationpb.New(cfg.MinUpTime)
	}
	if c.onDemand() && c.phase == serving {
		hello.ServingFor = durationpb.New(time.Since(c.servedAt))
	}
	return &pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: hello}}
}

// removeSession removes a stream that has ended; why is nil if both sides know that it has.
func (c *core) removeSession(s *session, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s)
	c.leaveSlots(s, why)
	c.notifyAll() // the number of routers
	if c.onDemand() && !s.released && c.phase == serving {
		c.lost[s] = time.AfterFunc(lostRouterTime, func() { c.dropLost(s) })
	}
	c.stopIfReleased()
}

// dropLost ends the time for which a lost router keeps the engine up.
func (c *core) dropLost(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lost, s)
	c.stopIfReleased()
}

// setRouter sets the router of a stream by its Welcome. If an earlier stream of this router was
// lost, the engine is no longer kept up for that: the router is back and sends Sleep itself.
func (c *core) setRouter(s *session, w *pb.Welcome, liveness time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	router := w.GetRouterId()
	s.router, s.liveness = router, liveness
	c.ledger.Welcome(s.slots, router, !w.GetUsage(), time.Now())
	c.divide()
	c.notifyAll() // the number of routers
	for old, timer := range c.lost {
		if old.router == router {
			timer.Stop()
			delete(c.lost, old)
		}
	}
}

// connected reports whether there is a stream to the router with this id.
func (c *core) connected(router string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		if s.router == router && router != "" {
			return true
		}
	}
	return false
}

// messages returns the messages to send on a stream: the pending ones and a Status.
func (c *core) messages(s *session) []*pb.AgentMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := s.pending
	s.pending = nil
	offer, share := s.slots.Offer()
	return append(list, &pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: &pb.Status{
		State: c.protocolState(), Healthy: c.phase == serving && c.healthy,
		Handled: s.handled, Routers: uint32(len(c.sessions)), Slots: new(uint32(share)), Offer: offer, //nolint:gosec // Validate bounds it
		InFlight: c.signals.InFlight(), Running: c.signals.Running, Waiting: c.signals.Waiting, KvUse: c.signals.KVUse,
	}}})
}
