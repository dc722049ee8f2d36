// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	"github.com/rs/zerolog"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// registration is one registered agent: its state, and what acts on it. The registry's
// mutex guards all of it but the replica's gate, and is held in all of its methods but
// onStatus, onWakeResult, onBye and onTimer, which take it.
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
	superseded bool      // it left because another agent has its id
	leftAt     time.Time // in a group: when it left while its engine might run
}

// heartbeat is what every Status brings and no decision depends on.
type heartbeat struct {
	at     time.Time  // of the last message
	status *pb.Status // the last one, for the status page; nil: none
	fewer  fewer      // with too few requests, not yet reported; zero: the last had enough
}

// reevaluate does all that follows from a change of the agent's state: its place in
// routing, the wakes of its models, the room of groups, and its timer.
func (a *registration) reevaluate() {
	r := a.registry
	if a.route() {
		a.logReady()
	}
	for m := range r.models.of(a) {
		r.reconcile(m)
	}
	a.scope().arbitrate()
	for m := range r.models.of(a) {
		r.models.tidy(m)
	}
	a.setTimer()
}

// route puts the agent into routing or takes it out, as its state asks for, and reports
// whether it went in. Log lines about it come after it, so that whoever reads them
// finds the replica.
func (a *registration) route() (entered bool) {
	want := a.routable()
	if want == a.routed {
		return false
	}
	r := a.registry
	a.routed = want
	if want {
		a.routedAt = time.Now()
		a.replica.gate.open()
		for m := range r.models.of(a) {
			m.servedAhead = m.need.Ahead
		}
		r.due.serving = append(r.due.serving, a.replica.info)
	} else {
		a.replica.gate.close()
	}
	r.routing.publish(a.replica, want)
	r.due.changed = append(r.due.changed, a.replica.targets...)
	return want
}

// logReady logs that the models of the agent are served, unless nobody waited for that.
func (a *registration) logReady() {
	for m := range a.registry.models.of(a) {
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
