// SPDX-License-Identifier: Apache-2.0

package agentreg

import "time"

// byeFrom takes in a Bye: the agent gets no new requests, no Wake and no Sleep.
// Its stream ends when nothing is in flight any more.
func (r *Registry) byeFrom(rec *registration) {
	r.update(func() {
		if rec.released || rec.leaving {
			return
		}
		rec.lastSeen = time.Now()
		rec.leaving = true
		r.offerNoMore(rec)
		r.settle(rec)
		if n := rec.replica.gate.inFlight(); n > 0 {
			r.log.Info().Str("agent", rec.hello.info.ID).Int64("in_flight", n).Msg("agent is leaving")
		}
		r.leftWhenIdle(rec)
	})
}

// offerNoMore takes rec out of what its models can count on.
func (r *Registry) offerNoMore(rec *registration) {
	for _, name := range rec.hello.info.Models {
		if m := r.models[name]; m != nil {
			delete(m.agents, rec)
		}
	}
}

// leftWhenIdle ends the stream of an agent that said Bye and has nothing to do.
func (r *Registry) leftWhenIdle(rec *registration) {
	if rec.leaving && rec.replica.gate.inFlight() == 0 {
		r.remove(rec, errBye)
	}
}

// emptied does what waits for a replica out of routing to have no slot taken:
// one that was kept for its slots is forgotten, one that is leaving has left, one
// that makes room is told to sleep.
func (r *Registry) emptied(rep *replica) {
	r.update(func() {
		if r.lingering[rep.info.Instance] == rep && rep.gate.inFlight() == 0 {
			delete(r.lingering, rep.info.Instance)
		}
		if rec := r.agents[rep.info.ID]; rec != nil && rec.replica == rep {
			r.leftWhenIdle(rec)
			if rec.closing {
				r.arbitrate(r.areaOf(rec))
			}
		}
	})
}
