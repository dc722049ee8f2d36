// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"errors"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// join registers the agent of a stream in place of one with the same id. If that was
// another instance it is sent a Reject. An instance that was itself replaced by another is
// refused.
func (r *Registry) join(h hello, s *session) (a *registration, err error) {
	r.update(func() {
		if _, open := r.sessions[s]; !open {
			err = errClosed
			return
		}
		if r.superseded.has(h.info.Instance) {
			err = errSuperseded
			return
		}
		if rej := r.groups.conflict(h); rej != nil {
			err = rej
			return
		}
		a = r.register(h, s)
	})
	return a, err
}

// register adds an agent that is accepted to the registry.
func (r *Registry) register(h hello, s *session) *registration {
	old := r.agents[h.info.ID]
	a := r.newRegistration(h, s, old)
	if old != nil {
		old.replaceBy(a)
		delete(r.departed, h.info.Instance) // the replica is in use again
	}
	s.agent, s.offer = a, h.offer
	a.replica.usage.begin(s)
	r.agents[h.info.ID] = a
	if h.group.name != "" {
		r.getOrAddGroup(h.group.name).add(a)
	}
	for _, name := range h.info.Models {
		r.models.getOrAdd(name).agents[a] = struct{}{}
	}
	s.send(r.welcome()) // first: reevaluate may send more
	r.tellFormer(s)
	entered := a.updateRouting()
	if old == nil || old.hello.info.Instance != h.info.Instance {
		a.log.Info().Str("address", h.info.Address).Strs("models", h.info.Models).
			Str("engine", h.info.Engine).Str("state", stateName(h.state)).Msg("agent registered")
	}
	if entered {
		a.logReady()
	}
	if old != nil {
		old.reevaluate()
	}
	a.reevaluate()
	s.tell()
	return a
}

func (r *Registry) newRegistration(h hello, s *session, old *registration) *registration {
	now := time.Now()
	a := &registration{
		registry: r, session: s, joined: now, heartbeat: heartbeat{at: now},
		log:     r.opts.Log.With().Str("agent", h.info.ID).Logger(),
		replica: r.departed.replicaFor(h, old, r.epoch),
	}
	a.hello, a.reported, a.healthy = h, h.state, h.state == pb.State_STATE_SERVING
	a.attempt.began, a.attempt.demandAt = now, now
	if a.healthy {
		a.upAt = now.Add(-h.servingFor)
	}
	a.replica.gate.setShare(h.share)
	a.timer = time.AfterFunc(r.opts.Liveness, a.onTimer)
	return a
}

// replaceBy removes the agent in favor of next, which has the same id.
func (a *registration) replaceBy(next *registration) {
	if a.hello.info.Instance != next.hello.info.Instance {
		a.registry.superseded.add(a.hello.info.Instance)
		a.log.Info().Str("cause", "superseded").Msg("agent left")
		a.detach(errSuperseded)
		return
	}
	next.attempt.sentAt, next.attempt.began, next.attempt.demandAt = a.attempt.sentAt, a.attempt.began, a.attempt.demandAt
	next.failures = a.failures
	if next.healthy && !a.upAt.IsZero() {
		next.upAt = a.upAt
	}
	a.detach(errReconnected)
}

// onBye handles a Bye: the agent gets no more requests, no Wake and no Sleep. Its stream
// ends when it has no requests in flight.
func (a *registration) onBye() {
	a.registry.update(func() {
		if a.left || a.leaving {
			return
		}
		a.heartbeat.at = time.Now()
		a.leaving = true
		a.registry.models.removeAgent(a)
		a.reevaluate()
		if n := a.replica.gate.inFlight(); n > 0 {
			a.log.Info().Int64("in_flight", n).Msg("agent is leaving")
		}
		a.removeIfDone()
	})
}

// removeIfDone removes the agent if it sent Bye and has no requests in flight.
func (a *registration) removeIfDone() {
	if a.leaving && a.replica.gate.inFlight() == 0 {
		a.remove(errBye)
	}
}

// remove removes an agent whose stream has ended or is to end.
func (a *registration) remove(cause error) {
	a.detach(cause)
	a.log.Info().AnErr("cause", cause).Msg("agent left")
	a.reevaluate()
}

// detach removes the agent from all tables and ends its stream. The caller must call
// reevaluate.
func (a *registration) detach(cause error) {
	r := a.registry
	a.left = true
	a.superseded = errors.Is(cause, errSuperseded)
	a.timer.Stop()
	a.session.end(cause)
	if r.agents[a.hello.info.ID] == a {
		delete(r.agents, a.hello.info.ID)
	}
	if a.group != nil {
		a.group.memberLeft(a)
	}
	r.models.removeAgent(a)
	a.updateRouting()
	a.replica.usage.session.CompareAndSwap(a.session, nil)
	if a.replica.gate.inFlight() > 0 {
		r.departed[a.hello.info.Instance] = a.replica
	}
}

// instanceSet holds the last maxSuperseded instances that were superseded, so that none of
// them reconnects and supersedes its successor.
type instanceSet struct {
	order []string
	in    map[string]struct{}
}

// maxSuperseded is the largest size of an instanceSet.
const maxSuperseded = 4096

func (s *instanceSet) has(instance string) bool {
	_, ok := s.in[instance]
	return ok
}

func (s *instanceSet) add(instance string) {
	if s.in == nil {
		s.in = map[string]struct{}{}
	}
	if s.has(instance) {
		return
	}
	if len(s.order) == maxSuperseded {
		delete(s.in, s.order[0])
		s.order = s.order[1:]
	}
	s.order = append(s.order, instance)
	s.in[instance] = struct{}{}
}
