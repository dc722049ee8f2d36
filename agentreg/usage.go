// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"sync/atomic"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// usagePause is the shortest time between two Usages on a stream.
const usagePause = time.Millisecond

// usage tells an agent what this router does with its share of the slots.
type usage struct {
	session atomic.Pointer[session] // nil: none that reads Usage
	divided atomic.Bool             // the agent has other routers, or its share is not all slots
	refused atomic.Int64            // when the last request was refused that could not wait for a slot, in Unix nanoseconds
}

// begin makes s the session that tells the agent. Until a Status says otherwise it does so at
// each change.
func (u *usage) begin(s *session) {
	u.divided.Store(true)
	u.session.Store(s)
}

// changed makes the session send a Usage, if the agent divides its slots.
func (u *usage) changed() {
	if s := u.session.Load(); s != nil && u.divided.Load() {
		s.tell()
	}
}

// tell makes the session send a Usage, unless the last one says the same.
func (s *session) tell() {
	select {
	case s.usageDue <- struct{}{}:
	default:
	}
}

// SlotWaitersChanged must be called when the number of requests that wait for a slot for t has
// changed.
func (r *Registry) SlotWaitersChanged(t target.Target) {
	if p := r.routing.poolOf(t); p != nil {
		for _, rep := range p.replicas {
			rep.usage.changed()
		}
	}
}

// Refused must be called when a request for the model was refused because no slot was free and
// it could not wait. Until the next heartbeat it counts as one that waits: otherwise a router
// without a share would never get one.
func (r *Registry) Refused(model string) {
	now := time.Now().UnixNano()
	for _, kind := range target.Kinds {
		p := r.routing.poolOf(target.Target{Model: model, Kind: kind})
		if p == nil {
			continue
		}
		for _, rep := range p.replicas {
			rep.usage.refused.Store(now)
			rep.usage.changed()
		}
	}
}

// waiting returns how many requests wait for a slot of the replica, at most all its slots.
func (r *Registry) waiting(rep *replica) (n int64) {
	if at := rep.usage.refused.Load(); time.Since(time.Unix(0, at)) < protocol.Heartbeat(r.opts.Liveness) {
		n++
	}
	if r.opts.SlotWaiters != nil {
		for _, t := range rep.targets {
			n += int64(r.opts.SlotWaiters(t))
		}
	}
	return min(n, rep.gate.slots)
}

// nextUsage returns the Usage to send on the stream, nil if the last one said the same.
func (r *Registry) nextUsage(s *session) *pb.RouterMessage {
	r.mu.Lock()
	a, offer := s.agent, s.offer
	r.mu.Unlock()
	if a == nil || offer == 0 {
		return nil
	}
	rep := a.replica
	waiting := r.waiting(rep)
	// A share is set before its offer, and earlier replicas only lose slots: what is kept is no
	// less than this.
	earlier := rep.takenEarlier()
	w := rep.gate.load()
	taken := w.taken() + earlier
	u := &pb.Usage{
		Offer: offer, Kept: uint32(max(w.share(), taken)), Taken: uint32(taken), Waiting: uint32(waiting), //nolint:gosec // at most protocol.MaxSlots
		Released: s.countReleased(rep, w),
	}
	if last := s.lastUsage; last != nil && last.GetOffer() == offer && last.GetKept() == u.GetKept() && last.GetWaiting() == u.GetWaiting() {
		return nil
	}
	s.lastUsage = u
	return &pb.RouterMessage{Message: &pb.RouterMessage_Usage{Usage: u}}
}

// countReleased returns how many slots of the replica and of earlier ones were released since
// the first call. It must be called at least once in so many releases.
func (s *session) countReleased(rep *replica, w word) uint64 {
	sum := w.released()
	for _, e := range rep.earlier {
		sum += e.gate.load().released()
	}
	if s.lastUsage != nil {
		s.released += (sum - s.releasedSum) % releases
	}
	s.releasedSum = sum
	return s.released
}
