// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdgate/holdgate/agentreg/agent/divide"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/mask"
)

// phase is what the engine is doing.
type phase uint8

const (
	asleep   phase = iota // it does not run
	waking                // it is starting
	serving               // it is up
	stopping              // it was serving, and is being stopped
)

// wakeCarryOver is how long a Wake that came while the engine served still counts: if the
// engine ends by itself within this time, it is started again for that Wake.
const wakeCarryOver = time.Second

// core is the state that the agent's goroutines share. The links change it when routers send
// messages; drive and watch change it with the state of the engine.
type core struct {
	cfg      Config
	instance string
	address  string

	mu          sync.Mutex
	phase       phase
	healthy     bool
	signals     engines.Signals
	wantUp      bool      // a router wants the engine up
	servedAt    time.Time // since when the engine serves
	lateWakeAt  time.Time // of the last Wake that found the engine serving
	sessions    map[*session]struct{}
	ledger      *divide.Ledger           // the routers' shares of the slots
	turning     bool                     // nextTurn is going to be called
	asking      bool                     // askOthers is going to be called
	frozen      chan struct{}            // receives a token when slots are frozen
	lost        map[*session]*time.Timer // streams that ended without a Sleep and still keep the engine up
	wantChanged chan struct{}            // receives a token when wantUp changes
}

func newCore(cfg Config, instance, address string) *core {
	return &core{
		cfg: cfg, instance: instance, address: address,
		sessions:    map[*session]struct{}{},
		lost:        map[*session]*time.Timer{},
		ledger:      divide.New(cfg.Slots),
		frozen:      make(chan struct{}, 1),
		wantChanged: make(chan struct{}, 1),
	}
}

// onDemand reports whether the agent starts its engine itself.
func (c *core) onDemand() bool { return len(c.cfg.Exec) > 0 }

// notify puts a token into a channel of capacity 1 unless it has one already.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// setPhase sets the phase, and makes every session send a Status.
func (c *core) setPhase(p phase, healthy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setPhaseLocked(p, healthy)
}

func (c *core) setPhaseLocked(p phase, healthy bool) {
	if p == serving && c.phase != serving {
		c.servedAt = time.Now()
	}
	c.phase, c.healthy = p, healthy
	if p == asleep && c.onDemand() { // no request runs in an engine that has ended
		c.ledger.Reset()
		c.divide()
	}
	c.notifyAll()
}

// notifyAll makes every session send a Status.
func (c *core) notifyAll() {
	for s := range c.sessions {
		notify(s.changed)
	}
}

// setHealthy sets the health of a serving engine, and reports whether it changed.
func (c *core) setHealthy(healthy bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != serving || c.healthy == healthy {
		return false
	}
	c.setPhaseLocked(serving, healthy)
	return true
}

// setModels sets what the engine serves. It must be called before there is any session.
func (c *core) setModels(models, kinds []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Models, c.cfg.Kinds = models, kinds
}

// setAddress sets the engine's address and the phase. The address of a stream is that of its
// Hello, so streams with another address end and are opened again.
func (c *core) setAddress(address string, p phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.address = address
	c.ledger.Reset() // it may be another engine
	c.setPhaseLocked(p, p == serving)
}

// addressChanged reports whether the engine's address differs from that in the Hello of s.
func (c *core) addressChanged(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.address != c.address
}

// wanted reports whether the engine should be up.
func (c *core) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wantUp
}

// keepRunning reports whether a running engine is still wanted. If it was to be stopped and
// is wanted again, it serves again.
func (c *core) keepRunning() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wantUp && c.phase == stopping {
		c.setPhaseLocked(serving, true)
	}
	return c.wantUp
}

// endWake ends a wake and makes every session send the result; failed is nil after a
// success. After a failure the engine is not wanted until the next Wake.
func (c *core) endWake(failed *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		result := &pb.WakeResult{Model: cmp.Or(s.wake, c.cfg.Models[0]), Ok: failed == nil}
		if failed != nil { // protobuf strings are UTF-8
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
		c.setPhaseLocked(asleep, false)
	case !c.wantUp: // every router has sent Sleep meanwhile
		c.setPhaseLocked(stopping, false)
	default:
		c.setPhaseLocked(serving, true)
	}
}

// engineEnded records that a serving engine ended by itself. It stays wanted if a Wake came
// within the last wakeCarryOver.
func (c *core) engineEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wantUp = c.wantUp && time.Since(c.lateWakeAt) < wakeCarryOver
	c.lateWakeAt = time.Time{}
	if c.wantUp {
		notify(c.wantChanged)
	}
	c.setPhaseLocked(asleep, false)
}

// onWake handles a Wake. If the engine is starting or serving already, the Wake is only
// acknowledged with a Status.
func (c *core) onWake(s *session, w *pb.Wake) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.handled = max(s.handled, w.GetSeq())
	s.released = false
	s.wake = w.GetModel()
	if c.phase == serving {
		c.lateWakeAt = time.Now()
	}
	if c.onDemand() && !c.wantUp {
		c.wantUp = true
		notify(c.wantChanged)
	}
	c.setPhaseLocked(c.phase, c.healthy)
}

// onSleep handles a Sleep.
func (c *core) onSleep(s *session, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.handled = max(s.handled, seq)
	s.released = true
	c.stopIfReleased()
	notify(s.changed)
}

// stopIfReleased starts the stop of the engine if every connected router has sent Sleep.
// While no router is connected the engine keeps running. So does one that reports no
// signals, while a lost router keeps it up.
func (c *core) stopIfReleased() {
	if !c.onDemand() || !c.wantUp || len(c.sessions) == 0 || len(c.lost) > 0 && c.signals.Running == nil {
		return
	}
	for s := range c.sessions {
		if !s.released {
			return
		}
	}
	c.wantUp = false
	notify(c.wantChanged)
	if c.phase == serving {
		c.setPhaseLocked(stopping, false)
	}
}

// acknowledge records that the health check that a StatusRequest requires is done.
func (c *core) acknowledge(s *session, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.handled = max(s.handled, seq)
	notify(s.changed)
}

// protocolState returns the phase as a state of the protocol. An engine that is being
// stopped is not asleep before it has ended.
func (c *core) protocolState() pb.State {
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
