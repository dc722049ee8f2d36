// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"sync"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/target"
)

// fakeSlots is a registry of replicas with slots for chatOfM, and the claim of its requests.
type fakeSlots struct {
	machine *holdstate.Machine

	mu       sync.Mutex
	replicas []*replica
	out      int
	failed   []string
	cameBack []string // replicas that sent a request back to the router
	closed   bool     // the gate
	never    error    // the error that Admit returns for every request
	before   func()   // called once, before the next answer to Serving
	pause    bool     // Take says Later
}

type replica struct {
	address string
	free    int
}

type fakeGrant struct {
	slots    *fakeSlots
	replica  *replica
	released bool
}

func (s *fakeSlots) Serving(t target.Target) bool {
	s.mu.Lock()
	before := s.before
	s.before = nil
	s.mu.Unlock()
	if before != nil {
		before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return t == chatOfM && len(s.replicas) > 0
}

// Admit gives every request a reservation unless the gate is shut.
func (s *fakeSlots) Admit(bool) (holdstate.Reservation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.never != nil {
		return nil, s.never
	}
	return fakeRoom{}, nil
}

type fakeRoom struct{}

func (fakeRoom) Release() {}

func (s *fakeSlots) shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// shutGate shuts the gate: no request gets a reservation, or ever will with an error.
func (s *fakeSlots) shutGate(shut bool, never error) {
	s.mu.Lock()
	s.closed, s.never = shut, never
	s.mu.Unlock()
	s.machine.UpdateAll()
}

// pauseFor makes every request wait, as after the death of a replica under it.
func (s *fakeSlots) pauseFor(d time.Duration) {
	s.mu.Lock()
	s.pause = true
	s.mu.Unlock()
	time.AfterFunc(d, func() {
		s.mu.Lock()
		s.pause = false
		s.mu.Unlock()
		s.machine.Update(chatOfM)
	})
}

func (*fakeSlots) Next() bool { return false }

func (s *fakeSlots) Take(holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause {
		return nil, holdstate.Later
	}
	for _, rep := range s.replicas {
		if rep.free > 0 {
			rep.free--
			s.out++
			return &fakeGrant{slots: s, replica: rep}, holdstate.Taken
		}
	}
	return nil, holdstate.Full
}

// up registers a replica.
func (s *fakeSlots) up(address string, free int) {
	s.mu.Lock()
	s.replicas = append(s.replicas, &replica{address: address, free: free})
	s.mu.Unlock()
	s.machine.Update(chatOfM)
}

// down takes a replica out of routing.
func (s *fakeSlots) down(address string) {
	s.mu.Lock()
	s.replicas = slices.DeleteFunc(s.replicas, func(r *replica) bool { return r.address == address })
	s.mu.Unlock()
	s.machine.Update(chatOfM)
}

func (s *fakeSlots) taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

func (s *fakeSlots) failures() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.failed)
}

func (g *fakeGrant) Replica() holdstate.Replica { return holdstate.Replica{Address: g.replica.address} }

func (g *fakeGrant) CameBack() {
	g.slots.mu.Lock()
	defer g.slots.mu.Unlock()
	g.slots.cameBack = append(g.slots.cameBack, g.replica.address)
}

func (g *fakeGrant) Failed(reason string, _ bool) {
	g.slots.mu.Lock()
	g.slots.failed = append(g.slots.failed, g.replica.address+" "+reason)
	g.slots.mu.Unlock()
	g.slots.down(g.replica.address)
}

func (g *fakeGrant) Release() {
	g.slots.mu.Lock()
	was := g.released
	if !was {
		g.released = true
		g.slots.out--
		g.replica.free++
	}
	g.slots.mu.Unlock()
	if !was {
		g.slots.machine.Update(chatOfM)
	}
}
