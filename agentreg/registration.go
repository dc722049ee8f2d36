// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"errors"
	"reflect"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// registration is one registered agent. The registry's mutex guards all of it but
// the replica's gate.
type registration struct {
	replica *replica
	hello   hello
	session *session
	timer   *time.Timer
	joined  time.Time

	lastSeen time.Time
	status   *pb.Status // the last one, for the status page

	fewer fewer // the last heartbeat with too few requests; no time: it had enough

	reported pb.State // what the agent last said that counts
	healthy  bool
	slept    bool      // this router said Sleep, and not Wake since
	cause    string    // of the last Sleep
	group    *group    // nil: none
	closing  bool      // takes no requests, so that it can make room in its group
	upAt     time.Time // since when it serves; zero: it does not
	routed   bool      // in routing

	seq     uint64    // of the last message that carried one
	command uint64    // seq of the last Wake or Sleep: older statuses tell no state
	handled uint64    // the highest seq that the agent has taken in
	saidAt  time.Time // when command was sent

	wakeSent   bool // a Wake has neither succeeded nor failed yet
	wakeAt     time.Time
	wokenAt    time.Time // when it began to wake, and when the last request waited for
	soughtAt   time.Time // it since; requests may wait for it at this moment
	failures   int       // wakes that failed in a row
	wakeFailed bool      // not to be asked again before retryAt or the next wish
	wakeReason string
	wakeDetail string // not for those who wait
	failedAs   uint64 // its number among the wakes that failed
	retryAt    time.Time

	failed   bool      // a request saw it refuse
	failSeq  uint64    // the first seq whose answer proves it healthy again
	failRow  int       // how often in a row it failed right after it came back
	backAt   time.Time // when it entered routing
	probeAt  time.Time // when to ask for a Status; zero: asked
	leaving  bool      // it said Bye, and requests are in flight
	released bool      // left: nothing more may be done with it

	superseded bool      // left because another agent has its id
	leftAt     time.Time // in a group: when it left while its engine might run
}

// asleep says whether, from this router's view, a Wake is what the agent needs.
func (a *registration) asleep() bool {
	return !a.wakeSent && (a.slept || a.reported == pb.State_STATE_ASLEEP)
}

// waking says whether the agent is on its way to serve.
func (a *registration) waking() bool {
	return a.wakeSent || !a.slept && a.reported == pb.State_STATE_WAKING
}

// routable says whether requests may be sent to the agent.
func (a *registration) routable() bool {
	return a.reported == pb.State_STATE_SERVING && a.healthy &&
		!a.slept && !a.wakeSent && !a.failed && !a.leaving && !a.released && !a.closing
}

// join registers the agent of a stream. An agent of the same id is replaced:
// by the same instance silently, by another with a Reject. An instance that was
// itself replaced before is refused.
func (r *Registry) join(h hello, s *session) (rec *registration, err error) {
	r.update(func() {
		if _, open := r.sessions[s]; !open {
			err = errClosed
			return
		}
		if r.superseded.has(h.info.Instance) {
			err = errSuperseded
			return
		}
		if rej := r.conflict(h); rej != nil {
			err = rej
			return
		}
		rec = r.enter(h, s)
	})
	return rec, err
}

func (r *Registry) enter(h hello, s *session) *registration {
	now := time.Now()
	rec := &registration{
		hello: h, session: s, joined: now, lastSeen: now,
		reported: h.state, healthy: h.state == pb.State_STATE_SERVING,
		replica: r.replicaFor(h), wokenAt: now, soughtAt: now,
	}
	if rec.healthy {
		rec.upAt = now.Add(-h.servingFor)
	}
	rec.replica.gate.divide(h.share)
	old := r.agents[h.info.ID]
	if old != nil {
		r.replace(old, rec)
		delete(r.lingering, h.info.Instance) // the replica is in use again
	}
	s.agent = rec
	r.agents[h.info.ID] = rec
	r.enterGroup(rec)
	for _, name := range h.info.Models {
		r.model(name).agents[rec] = struct{}{}
	}
	rec.timer = time.AfterFunc(r.opts.Liveness, func() { r.tick(rec) })
	// Before anything that settle has to say.
	s.send(r.welcome())
	entered := r.route(rec)
	if old == nil || old.hello.info.Instance != h.info.Instance {
		r.log.Info().Str("agent", h.info.ID).Str("address", h.info.Address).
			Strs("models", h.info.Models).Str("engine", h.info.Engine).
			Str("state", stateName(h.state)).Msg("agent registered")
	}
	if entered {
		r.ready(rec)
	}
	if old != nil {
		r.settle(old)
	}
	r.settle(rec)
	return rec
}

// replace takes old out for rec, which has the same id.
func (r *Registry) replace(old, rec *registration) {
	if old.hello.info.Instance == rec.hello.info.Instance {
		rec.wakeAt, rec.wokenAt, rec.soughtAt = old.wakeAt, old.wokenAt, old.soughtAt
		rec.failures, rec.wakeFailed, rec.retryAt = old.failures, old.wakeFailed, old.retryAt
		rec.wakeReason, rec.wakeDetail, rec.failedAs = old.wakeReason, old.wakeDetail, old.failedAs
		if rec.healthy && !old.upAt.IsZero() {
			rec.upAt = old.upAt
		}
		r.detach(old, errReconnected)
		return
	}
	r.superseded.add(old.hello.info.Instance)
	r.log.Info().Str("agent", old.hello.info.ID).Str("cause", "superseded").Msg("agent left")
	r.detach(old, errSuperseded)
}

// replicaFor gives the replica for h: the one this instance had before, with
// the slots that are still taken on it, or a new one.
func (r *Registry) replicaFor(h hello) *replica {
	before := r.lingering[h.info.Instance]
	if old := r.agents[h.info.ID]; old != nil && old.hello.info.Instance == h.info.Instance {
		before = old.replica
	}
	earlier := r.earlierAt(h)
	delete(r.lingering, h.info.Instance)
	if before != nil && before.gate.slots == h.slots && reflect.DeepEqual(before.info, h.info) {
		return before
	}
	rep := &replica{info: h.info, targets: h.targets(), before: earlier}
	rep.gate.slots = h.slots
	rep.gate.n.Store(closed)
	return rep
}

// earlierAt are the replicas with slots taken that the engine of h was to earlier
// instances.
func (r *Registry) earlierAt(h hello) (before []*replica) {
	for _, rep := range r.lingering {
		if rep.info.Address == h.info.Address {
			before = append(before, rep)
		}
	}
	if old := r.agents[h.info.ID]; old != nil && old.hello.info.Address == h.info.Address && old.replica.gate.inFlight() > 0 {
		before = append(before, old.replica)
	}
	return before
}

// remove takes an agent out whose stream has ended or is to end.
func (r *Registry) remove(rec *registration, cause error) {
	r.detach(rec, cause)
	r.log.Info().Str("agent", rec.hello.info.ID).AnErr("cause", cause).Msg("agent left")
	r.settle(rec)
}

// detach takes rec out of the tables and ends its stream. The caller settles it.
func (r *Registry) detach(rec *registration, cause error) {
	rec.released = true
	rec.superseded = errors.Is(cause, errSuperseded)
	rec.timer.Stop()
	rec.session.end(cause)
	if r.agents[rec.hello.info.ID] == rec {
		delete(r.agents, rec.hello.info.ID)
	}
	r.leaveGroup(rec)
	r.offerNoMore(rec)
	r.route(rec)
	if rec.replica.gate.inFlight() > 0 {
		r.lingering[rec.hello.info.Instance] = rec.replica
	}
}

// route puts rec into routing or takes it out, as it now should be. It reports
// whether rec went in. Log lines about it come after it, so that who reads them
// finds what they say.
func (r *Registry) route(rec *registration) (entered bool) {
	want := rec.routable()
	if want == rec.routed {
		return false
	}
	rec.routed = want
	if want {
		rec.backAt = time.Now()
		rec.replica.gate.idleSince.Store(int64(time.Since(r.epoch)))
		rec.replica.gate.n.And(^closed)
		for _, name := range rec.hello.info.Models {
			if m := r.models[name]; m != nil {
				m.spent = m.need.Ahead
			}
		}
		r.fx.serving = append(r.fx.serving, rec.replica.info)
	} else {
		rec.replica.gate.n.Or(closed)
	}
	r.routing.publish(rec.replica, want)
	r.fx.changed = append(r.fx.changed, rec.replica.targets...)
	return want
}

// ready logs that the models of rec can be asked.
func (r *Registry) ready(rec *registration) {
	for _, name := range rec.hello.info.Models {
		since := rec.wakeAt
		if m := r.models[name]; since.IsZero() && m != nil && m.need.Wanted() {
			since = m.wantedSince
		}
		if since.IsZero() {
			continue
		}
		r.log.Info().Str("model", name).Str("agent", rec.hello.info.ID).
			Stringer("after", time.Since(since).Round(time.Millisecond)).Msg("ready")
	}
	rec.wakeAt = time.Time{}
}

// settle brings everything that follows from a change of rec up to date:
// routing, the wakes of its models, the room of groups, and its timer.
func (r *Registry) settle(rec *registration) {
	if r.route(rec) {
		r.ready(rec)
	}
	for _, name := range rec.hello.info.Models {
		if m := r.models[name]; m != nil {
			r.reconcile(m)
		}
	}
	r.arbitrate(r.areaOf(rec))
	for _, name := range rec.hello.info.Models {
		if m := r.models[name]; m != nil {
			r.tidy(m)
		}
	}
	r.arm(rec)
}

// hello is a checked Hello.
type hello struct {
	info        *AgentInfo
	slots       int64
	share       *uint32 // of the slots, for this router; nil: all
	state       pb.State
	canWake     bool
	idleTimeout time.Duration
	minUp       time.Duration
	servingFor  time.Duration
	group       groupSpec
}

// targets are all pairs of the agent's models and kinds.
func (h hello) targets() []target.Target {
	targets := make([]target.Target, 0, len(h.info.Models)*len(h.info.Kinds))
	for _, m := range h.info.Models {
		for _, k := range h.info.Kinds {
			targets = append(targets, target.Target{Model: m, Kind: k})
		}
	}
	return targets
}
