// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	"github.com/rs/zerolog"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// registration is one registered agent. The registry's mutex guards all of it except the
// replica's gate. Its methods are called with the mutex held, except onStatus,
// onWakeResult, onBye and onTimer, which lock it.
type registration struct {
	state

	registry  *Registry
	log       zerolog.Logger
	replica   *replica
	session   *session
	timer     *time.Timer // calls onTimer when something may be due
	joined    time.Time
	heartbeat heartbeat

	group      *group    // nil: none
	superseded bool      // it left because another instance registered with its id
	leftAt     time.Time // set in a group only: when it left while its engine might run
}

// heartbeat is the part of a Status that no decision about wakes and routing depends on.
type heartbeat struct {
	at     time.Time  // of the last message
	status *pb.Status // the last one, for the status page; nil: none
	fewer  fewer      // set if the last Status had too few requests, which is not yet reported
}

// reevaluate must be called after a change of the agent's state. It updates routing, the
// wakes of the agent's models, the room of groups, and the agent's timer.
func (a *registration) reevaluate() {
	r := a.registry
	if a.updateRouting() {
		a.logReady()
	}
	for m := range r.models.ofAgent(a) {
		r.reconcile(m)
	}
	a.scope().arbitrate()
	for m := range r.models.ofAgent(a) {
		r.models.removeIfUnused(m)
	}
	a.setTimer()
}

// updateRouting adds the agent to routing or removes it, as its state requires, and reports
// whether it was added. The caller logs that afterwards, so that the replica is in routing
// when the line "ready" appears.
func (a *registration) updateRouting() (entered bool) {
	want := a.routable()
	if want == a.routed {
		return false
	}
	r := a.registry
	a.routed = want
	if want {
		a.routedAt = time.Now()
		a.replica.gate.open()
		for m := range r.models.ofAgent(a) {
			m.servedAhead = m.need.Ahead
		}
		r.due.serving = append(r.due.serving, a.replica.info)
		a.session.tell() // requests may wait already
	} else {
		a.replica.gate.close()
		if !r.draining && !a.sentAway() {
			r.due.lost = append(r.due.lost, a.replica.info)
		}
	}
	r.routing.publish(a.replica, want)
	r.due.changed = append(r.due.changed, a.replica.targets...)
	return want
}

// logReady logs each model that the agent now serves and that was woken or wanted.
func (a *registration) logReady() {
	for m := range a.registry.models.ofAgent(a) {
		since := a.attempt.sentAt
		if since.IsZero() && m.need.Wanted() {
			since = m.wantedSince
		}
		if since.IsZero() {
			continue
		}
		a.log.Info().Str("model", m.name).Stringer("after", time.Since(since).Round(time.Millisecond)).Msg("ready")
	}
	a.attempt.sentAt = time.Time{}
}
