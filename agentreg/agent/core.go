// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/mask"
)

// phase is what the engine is doing.
type phase uint8

const (
	asleep phase = iota
	waking
	serving
	stopping
)

// recently is how young a Wake may be when the engine it found running ends,
// for the Wake to count as meant for the next one.
const recently = time.Second

// lostRouter is how long a router that is gone, and did not say Sleep, keeps an engine
// that does not tell of its requests: Envoy carries the router's answers on without it.
// An engine that tells is stopped when it has none.
const lostRouter = 30 * time.Second

// core is what the agent knows. Links change it by what routers say, the
// driver of the engine by what the engine does.
type core struct {
	cfg      Config
	instance string
	address  string

	mu       sync.Mutex
	phase    phase
	healthy  bool
	signals  engines.Signals
	wantUp   bool
	servedAt time.Time // since when the engine serves
	wokenAt  time.Time // the last Wake that found the engine serving
	sessions map[*session]struct{}
	opened   uint64                   // sessions so far
	lost     map[*session]*time.Timer // of routers that are gone and still keep the engine
	kick     chan struct{}            // wantUp changed
}

// session is one router's stream as core sees it.
type session struct {
	router  string             // the router's id
	address string             // of the engine, as the Hello said
	handled uint64             // the highest seq taken in
	slept   bool               // the router's last word was Sleep
	wake    string             // the model of its last Wake
	opened  uint64             // its place among the sessions
	pending []*pb.AgentMessage // to be sent before the next Status
	notify  chan struct{}      // there is something to send
}

func newCore(cfg Config, instance, address string) *core {
	return &core{
		cfg: cfg, instance: instance, address: address,
		sessions: map[*session]struct{}{},
		lost:     map[*session]*time.Timer{},
		kick:     make(chan struct{}, 1),
	}
}

// onDemand says whether the agent starts its engine itself.
func (c *core) onDemand() bool { return len(c.cfg.Exec) > 0 }

// poke puts a token into a channel that holds one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// set changes the phase and tells every router.
func (c *core) set(p phase, healthy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setLocked(p, healthy)
}

func (c *core) setLocked(p phase, healthy bool) {
	if p == serving && c.phase != serving {
		c.servedAt = time.Now()
	}
	c.phase, c.healthy = p, healthy
	c.tellAll()
}

// tellAll has every router told what is so.
func (c *core) tellAll() {
	for s := range c.sessions {
		poke(s.notify)
	}
}

// setHealthy notes the outcome of health checks of a serving engine, and
// reports whether it is news.
func (c *core) setHealthy(healthy bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != serving || c.healthy == healthy {
		return false
	}
	c.setLocked(serving, healthy)
	return true
}

// setSignals notes how busy the engine is, for the next Status.
func (c *core) setSignals(s engines.Signals) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signals = s
}

// adopt takes in what the engine serves, before there is any session.
func (c *core) adopt(models, kinds []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Models, c.cfg.Kinds = models, kinds
}

// move notes where the engine is. Routers know an agent by one address: the streams
// that have named another one end, and are opened anew.
func (c *core) move(address string, p phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.address = address
	c.setLocked(p, p == serving)
}

// moved says whether the engine is no longer where s said.
func (c *core) moved(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.address != c.address
}

// wanted says whether the engine should be up.
func (c *core) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wantUp
}

// keeps says whether a running engine is to run on. One that was let go and is
// wanted again before it was stopped serves on.
func (c *core) keeps() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wantUp && c.phase == stopping {
		c.setLocked(serving, true)
	}
	return c.wantUp
}

// woke ends a wake. With a failure the engine is wanted no more until the next Wake.
func (c *core) woke(failed *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		result := &pb.WakeResult{Model: cmp.Or(s.wake, c.cfg.Models[0]), Ok: failed == nil}
		if failed != nil { // a message carries nothing but UTF-8
			result.Reason = strings.ToValidUTF8(failed.reason, "?")
			result.Detail = strings.ToValidUTF8(mask.Secrets(failed.detail), "?")
			if failed.retry > 0 {
				result.RetryAfter = durationpb.New(failed.retry)
			}
		}
		s.pending = append(s.pending, &pb.AgentMessage{Message: &pb.AgentMessage_WakeResult{WakeResult: result}})
	}
	switch {
	case failed != nil:
		c.wantUp = false
		c.setLocked(asleep, false)
	case !c.wantUp: // let go in this moment
		c.setLocked(stopping, false)
	default:
		c.setLocked(serving, true)
	}
}

// ended notes that a serving engine ended by itself. A Wake that has only just
// found it running is not lost: the engine stays wanted.
func (c *core) ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wantUp = c.wantUp && time.Since(c.wokenAt) < recently
	c.wokenAt = time.Time{}
	if c.wantUp {
		poke(c.kick)
	}
	c.setLocked(asleep, false)
}

// onWake takes in a Wake. One that arrives while the engine starts or serves
// asks for what is already so.
func (c *core) onWake(s *session, w *pb.Wake) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.handled = max(s.handled, w.GetSeq())
	s.slept = false
	s.wake = w.GetModel()
	if c.phase == serving {
		c.wokenAt = time.Now()
	}
	if c.onDemand() && !c.wantUp {
		c.wantUp = true
		poke(c.kick)
	}
	c.setLocked(c.phase, c.healthy)
}

// onSleep takes in a Sleep.
func (c *core) onSleep(s *session, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.handled = max(s.handled, seq)
	s.slept = true
	c.letGo()
	poke(s.notify)
}

// letGo begins the stop of the engine when every connected router has let it
// go. Without routers the engine keeps what it has.
func (c *core) letGo() {
	if !c.onDemand() || !c.wantUp || len(c.sessions) == 0 || len(c.lost) > 0 && c.signals.Running == nil {
		return
	}
	for s := range c.sessions {
		if !s.slept {
			return
		}
	}
	c.wantUp = false
	poke(c.kick)
	if c.phase == serving {
		c.setLocked(stopping, false)
	}
}

// answered notes that a StatusRequest was followed by a health check.
func (c *core) answered(s *session, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.handled = max(s.handled, seq)
	poke(s.notify)
}

// open adds a stream and gives the Hello for it. From here on the engine is
// not stopped before the router has said Sleep.
func (c *core) open(s *session) *pb.AgentMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[s] = struct{}{}
	c.opened++
	s.opened = c.opened
	state := pb.State_STATE_SERVING
	switch {
	case c.phase == waking || c.wantUp && c.phase != serving:
		state = pb.State_STATE_WAKING
	case c.phase != serving:
		state = pb.State_STATE_ASLEEP
	}
	// A Hello has no health: what follows it at once corrects it.
	poke(s.notify)
	s.address = c.address
	cfg := &c.cfg
	hello := &pb.Hello{
		AgentId: cfg.ID, Instance: c.instance, Address: c.address,
		Models: cfg.Models, Kinds: cfg.Kinds, Slots: uint32(cfg.Slots), Share: c.shareOf(s), //nolint:gosec // Validate bounds it
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

// close drops a stream that has ended.
func (c *core) close(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s)
	c.tellAll() // of their slots
	if c.onDemand() && !s.slept && c.phase == serving {
		c.lost[s] = time.AfterFunc(lostRouter, func() { c.forget(s) })
	}
	c.letGo()
}

// forget ends what a router that is gone has a say in.
func (c *core) forget(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lost, s)
	c.letGo()
}

// welcome notes which router a stream leads to. One that was gone is back, and
// knows what it has in the engine.
func (c *core) welcome(s *session, router string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.router = router
	c.tellAll() // of their slots
	for old, timer := range c.lost {
		if old.router == router {
			timer.Stop()
			delete(c.lost, old)
		}
	}
}

// connected says whether a stream leads to router.
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

// next gives what is to be sent on a stream: what is pending, and a Status.
func (c *core) next(s *session) []*pb.AgentMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := s.pending
	s.pending = nil
	return append(list, &pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: &pb.Status{
		State: c.state(), Healthy: c.phase == serving && c.healthy,
		Handled: s.handled, Routers: uint32(len(c.sessions)), Slots: c.shareOf(s), //nolint:gosec // a handful
		InFlight: c.signals.InFlight(), Running: c.signals.Running, Waiting: c.signals.Waiting, KvUse: c.signals.KVUse,
	}}})
}

// shareOf is how many of the engine's slots a router may use: all routers together no
// more than there are, but each one. A router that has not answered has none.
func (c *core) shareOf(s *session) *uint32 {
	routers, before := 0, 0
	for other := range c.sessions {
		if other != s && other.router == "" {
			continue
		}
		routers++
		if other.opened < s.opened {
			before++
		}
	}
	share := c.cfg.Slots / routers
	if before < c.cfg.Slots%routers {
		share++
	}
	return new(uint32(max(share, 1))) //nolint:gosec // Validate bounds it
}

// state is the phase in the words of the protocol. An engine that is being
// stopped is not asleep before it has ended.
func (c *core) state() pb.State {
	switch {
	case c.phase == serving:
		return pb.State_STATE_SERVING
	case c.phase == waking || c.wantUp:
		return pb.State_STATE_WAKING
	case c.phase == stopping:
		return pb.State_STATE_SERVING
	}
	return pb.State_STATE_ASLEEP
}
