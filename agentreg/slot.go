// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"sync/atomic"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// Slot is the right to send one request to one replica. Whoever took it releases it when
// Envoy carries the request no more; the registry does not take it back on its own.
// It outlives its agent: a replica whose agent left stays in Registry.departed, and
// counts against the engine when the agent is back, until its last slot is released.
type Slot struct {
	registry *Registry
	replica  *replica
	released atomic.Bool
}

// TakeFrom takes a slot on the least loaded of the replicas of t that fit; a nil
// Filter fits all. The slot is nil unless the outcome is Taken; then the caller must
// release it.
func (r *Registry) TakeFrom(t target.Target, f Filter) (*Slot, Outcome) {
	rep, o := r.routing.take(t, f)
	if o != Taken {
		return nil, o
	}
	return &Slot{registry: r, replica: rep}, Taken
}

// Agent is the agent that the slot is on.
func (s *Slot) Agent() *AgentInfo { return s.replica.info }

// Release gives the slot back. Calls after the first do nothing.
func (s *Slot) Release() {
	if !s.released.CompareAndSwap(false, true) {
		return
	}
	g := &s.replica.gate
	g.markIdle() // before the count: whoever reads zero must read this time
	if g.n.Add(-1) == closed {
		s.registry.lastReleased(s.replica)
	}
	s.Changed()
}

// lastReleased acts on the release of the last slot of a replica that is out of
// routing: a departed one is forgotten, the stream of an agent that sent Bye ends, and an
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

// Changed calls OnChange for the replica's targets: another request may now be sent to
// the replica.
func (s *Slot) Changed() { s.registry.changed(s.replica.targets) }

// registration is the agent of the slot, nil if it left or registered anew. The
// registry's mutex is held.
func (s *Slot) registration() *registration {
	if a := s.registry.agents[s.replica.info.ID]; a != nil && a.replica == s.replica {
		return a
	}
	return nil
}

// CameBack reports that a request which was sent to the slot's replica came back to
// this router. The agent is rejected.
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

// Failed reports that the slot's replica refused or reset a request. It is out of
// routing until a Status, which is requested at once, reports it healthy.
// The slot is still to be released.
func (s *Slot) Failed(reason string) {
	s.registry.update(func() {
		if a := s.registration(); a != nil {
			a.refusedRequest(reason)
		}
	})
}
