// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"sync/atomic"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// Slot is the right to send one request to one replica. Its owner must release it when
// Envoy no longer has the request; the registry never does so itself. A slot outlives its
// agent: when the agent leaves, the replica stays in Registry.departed until its last slot
// is released, and counts against the engine if the agent comes back.
type Slot struct {
	registry *Registry
	replica  *replica
	released atomic.Bool
}

// TakeFrom takes a slot on the least loaded replica of t that fits; a nil Filter fits all.
// If the outcome is Taken, the caller must release the slot; otherwise the slot is nil.
func (r *Registry) TakeFrom(t target.Target, f Filter) (*Slot, Outcome) {
	rep, o := r.routing.take(t, f)
	if o != Taken {
		return nil, o
	}
	return &Slot{registry: r, replica: rep}, Taken
}

// Agent returns the agent whose slot this is.
func (s *Slot) Agent() *AgentInfo { return s.replica.info }

// Others returns the addresses of at most n other replicas of t in routing that fit, the least
// loaded first; a nil Filter fits all.
func (s *Slot) Others(t target.Target, f Filter, n int) []string {
	p := s.registry.routing.poolOf(t)
	if p == nil {
		return nil
	}
	return p.least(f, n, s.replica.info.Address)
}

// Release frees the slot. Calls after the first do nothing.
func (s *Slot) Release() {
	if !s.released.CompareAndSwap(false, true) {
		return
	}
	g := &s.replica.gate
	g.markIdle() // before the count, so that a reader that sees zero also sees this time
	w := g.release()
	if w.closed() || w.taken() >= w.share() || s.replica.earlier != nil {
		s.registry.releasedAbove(s.replica, w)
	}
	s.Changed()
}

// releasedAbove is called when a slot was released that was not one of a share in use: this
// router now keeps fewer. w is the state of the gate after that.
func (r *Registry) releasedAbove(rep *replica, w word) {
	if !w.closed() {
		rep.usage.changed()
		return
	}
	if w.taken() == 0 {
		r.lastReleased(rep)
	}
	for _, t := range rep.targets {
		r.SlotWaitersChanged(t) // another agent may have the address
	}
}

// lastReleased is called when the last slot of a replica that is out of routing was
// released: a departed replica is removed, the stream of an agent that sent Bye ends, and an
// agent that makes room in its group is sent a Sleep.
func (r *Registry) lastReleased(rep *replica) {
	r.update(func() {
		if r.departed[rep.info.Instance] == rep && rep.gate.inFlight() == 0 {
			delete(r.departed, rep.info.Instance)
		}
		if a := r.agents[rep.info.ID]; a != nil && a.replica == rep {
			a.removeIfDone()
			if a.closing {
				a.scope().arbitrate()
			}
		}
	})
}

// Changed calls OnChange for the replica's targets, since another request may now be sent
// to the replica.
func (s *Slot) Changed() { s.registry.changed(s.replica.targets) }

// registration returns the agent of the slot, nil if it left or now has another replica. The
// registry's mutex must be held.
func (s *Slot) registration() *registration {
	if a := s.registry.agents[s.replica.info.ID]; a != nil && a.replica == s.replica {
		return a
	}
	return nil
}

// CameBack reports that a request that was sent to the slot's replica came back to this
// router: the agent has registered the router's own address. The agent is rejected.
func (s *Slot) CameBack() {
	s.registry.update(func() {
		a := s.registration()
		if a == nil {
			return
		}
		rej := &rejected{code: protocol.CodeAddressNotAllowed, message: "address: a request that was sent to " + s.replica.info.Address +
			" came back to this router: name the engine's own address, not the router's"}
		a.log.Warn().Str("code", rej.code).Str("problem", rej.message).Msg("agent rejected")
		a.detach(rej)
		a.reevaluate()
	})
}

// Failed reports that the slot's replica refused or reset a request. The replica is out of
// routing until a Status, which is requested at once, reports it healthy. The slot must
// still be released.
func (s *Slot) Failed(reason string) {
	s.registry.update(func() {
		if a := s.registration(); a != nil {
			a.refusedRequest(reason)
		}
	})
}
