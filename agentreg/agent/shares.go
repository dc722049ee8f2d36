// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent/divide"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// turnTime is how long a router keeps its turn while requests wait at more routers than the
// engine has slots.
const turnTime = time.Second

// askPause is how long a router may have slots that it does not use while requests wait
// elsewhere: it does not say that a request has ended.
const askPause = 250 * time.Millisecond

// onUsage records what a router says about its share of the slots.
func (c *core) onUsage(s *session, u *pb.Usage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ledger.Use(s.slots, divide.Usage{
		Offer: u.GetOffer(), Kept: int(u.GetKept()), Taken: int(u.GetTaken()), Waiting: int(u.GetWaiting()), Released: u.GetReleased(),
	})
	c.divide()
}

// divide divides the slots anew, and makes the sessions whose shares change send a Status.
func (c *core) divide() {
	c.ledger.Divide()
	for s := range c.sessions {
		if s.slots.Due() {
			notify(s.changed)
		}
	}
	if c.ledger.Scarce() && !c.turning {
		c.turning = true
		time.AfterFunc(turnTime, c.nextTurn)
	}
	if c.ledger.Wanting() && !c.asking {
		c.asking = true
		time.AfterFunc(askPause, c.askOthers)
	}
}

// askOthers makes all routers send a Usage, if requests still wait at one.
func (c *core) askOthers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = false
	if c.ledger.Wanting() {
		c.notifyAll()
	}
}

// nextTurn lets other routers have the slots, if there are still too few.
func (c *core) nextTurn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turning = false
	if c.ledger.Scarce() {
		c.ledger.NextTurn()
		c.divide()
	}
}

// leaveSlots freezes what the router of a stream that has ended keeps of the slots.
func (c *core) leaveSlots(s *session, why error) {
	now := time.Now()
	end := divide.End{Now: now, Quiet: now}
	if unnoticed(why) {
		end.Quiet = now.Add(s.liveness)
	}
	if n := c.signals.InFlight(); n != nil {
		end.InFlight = new(int(*n))
	}
	c.ledger.Leave(s.slots, end)
	if errors.Is(why, errMoved) {
		c.ledger.Reset() // its requests are in an engine that is no longer there
	}
	if c.ledger.Frozen() > 0 {
		notify(c.frozen)
		time.AfterFunc(end.Quiet.Sub(now)+divide.GoneTime, c.expireFrozen)
	}
	c.divide()
}

// freeze freezes slots for requests that the engine has from before the agent's start.
func (c *core) freeze(requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ledger.Freeze(requests, time.Now())
	notify(c.frozen)
}

// unnoticed reports whether a stream ended because nothing was heard from the router for some
// time, so that the router may not know it yet.
func unnoticed(why error) bool {
	signs := []string{"keepalive ping", "timed out", "no route to host", "network is unreachable"}
	return why != nil && slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(why.Error(), sign) })
}

// expireFrozen ends what has been frozen for divide.GoneTime, if the engine does not report
// its requests.
func (c *core) expireFrozen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signals.InFlight() == nil {
		c.ledger.Expire(time.Now())
		c.divide()
	}
}

// slotsFrozen reports whether slots are frozen.
func (c *core) slotsFrozen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ledger.Frozen() > 0
}

// askForUsage makes all routers send a Usage.
func (c *core) askForUsage() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ledger.Ask()
	c.notifyAll()
}

// setSignals sets how busy the engine is, by a reading that began at a time, for the next
// Status.
func (c *core) setSignals(s engines.Signals, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signals = s
	if n := s.InFlight(); n == nil {
		c.ledger.Expire(time.Now())
	} else {
		c.ledger.Look(began, int(*n))
	}
	c.divide()
}
