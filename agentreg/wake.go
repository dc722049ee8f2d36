// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"slices"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// wakeCooldown is how long an agent whose wake failed is left alone while the
// same wish lasts. A new wish asks it again at once, unless it is in a group.
const wakeCooldown = 10 * time.Second

// maxGroupCooldown bounds how long an agent of a group whose wakes fail is left alone,
// which doubles with each failure in a row: each try may close another model.
const maxGroupCooldown = 5 * time.Minute

// settled is how long an agent must have served for its failed wakes to be forgotten.
const settled = 30 * time.Second

// maxProbeDelay bounds the wait before an agent that keeps refusing requests
// is asked for its health again.
const maxProbeDelay = 2 * time.Second

// model is what the registry knows about one name.
type model struct {
	name        string
	agents      map[*registration]struct{}
	need        target.Need
	spent       uint64 // the last wish ahead during which the model was up
	wantedSince time.Time
	// exhausted: OnWakeFailed was called and no Wake sent since.
	exhausted  bool
	wakeDetail string // of the last wake that failed: what those who wait are not told
	// turn is its place among the models that need an agent of a group, 0 for
	// none.
	turn uint64
	wait *RoomWait // nil: it waits for no group's room
}

// model gives the entry of name, which tidy drops when nothing needs it.
func (r *Registry) model(name string) *model {
	m := r.models[name]
	if m == nil {
		m = &model{name: name, agents: map[*registration]struct{}{}}
		r.models[name] = m
	}
	return m
}

func (r *Registry) tidy(m *model) {
	if len(m.agents) == 0 && !m.need.Wanted() {
		delete(r.models, m.name)
	}
}

// SetNeed says whether and why model should be up. While it is wanted and nothing
// serves it, agents that can are asked to wake. When requests begin to wait for it, or
// it is wanted anew, agents that failed to wake before are asked again, unless they are
// in a group, where a try may cost another model its place.
func (r *Registry) SetNeed(name string, w target.Need) {
	r.update(func() {
		m := r.models[name]
		if !w.Wanted() && m == nil {
			return
		}
		m = r.model(name)
		if w == m.need {
			return
		}
		r.setNeed(m, w)
		r.reconcile(m)
		in := newArea()
		in.addModel(m)
		r.arbitrate(r.grown(in))
		r.tidy(m)
	})
}

func (r *Registry) setNeed(m *model, w target.Need) {
	before := m.need
	m.need = w
	if w.Wanted() && !before.Wanted() {
		m.wantedSince = time.Now()
	}
	begins := w.Demand && !before.Demand || w.Wanted() && !before.Wanted()
	if begins {
		m.exhausted = false
	}
	for rec := range m.agents {
		if begins && rec.group == nil {
			rec.wakeFailed = false
		}
		if before.Demand && !w.Demand {
			rec.soughtAt = time.Now()
		}
		if rec.routed {
			m.spent = w.Ahead
		}
		r.arm(rec)
	}
}

// Waking says whether an agent is on its way to serve model.
func (r *Registry) Waking(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[name]
	if m == nil {
		return false
	}
	for rec := range m.agents {
		if rec.waking() {
			return true
		}
	}
	return false
}

// WakeDetail is what is known of a model's last failed wake and not told to those who
// wait; empty for nothing.
func (r *Registry) WakeDetail(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.models[name]; m != nil {
		return m.wakeDetail
	}
	return ""
}

// wake sends a Wake for m to rec.
func (r *Registry) wake(rec *registration, m *model) {
	r.log.Info().Str("model", m.name).Str("agent", rec.hello.info.ID).Msg("waking")
	m.exhausted = false
	rec.slept = false
	rec.wakeSent = true
	rec.wakeAt = time.Now()
	rec.saidAt, rec.wokenAt, rec.soughtAt = rec.wakeAt, rec.wakeAt, rec.wakeAt
	rec.seq++
	rec.command = rec.seq
	rec.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_Wake{Wake: &pb.Wake{Model: m.name, Seq: rec.seq}}})
	r.arm(rec)
}

// wakeFailed notes that rec's engine could not be woken, and is not to be tried again
// for a while, and for notBefore at least. The detail is for operators alone.
func (r *Registry) wakeFailed(rec *registration, reason, detail string, notBefore time.Duration) {
	rec.failures++
	pause := wakeCooldown
	if rec.group != nil {
		pause = min(wakeCooldown<<min(rec.failures-1, 10), maxGroupCooldown)
	}
	pause = max(pause, notBefore)
	line := r.log.Info().Str("agent", rec.hello.info.ID).Strs("models", rec.hello.info.Models).
		Str("reason", reason).Stringer("next_try_in", pause.Round(time.Millisecond))
	if detail != "" {
		line = line.Str("detail", detail)
	}
	line.Msg("wake failed")
	rec.wakeSent = false
	rec.reported = pb.State_STATE_ASLEEP
	rec.wakeFailed = true
	rec.wakeReason, rec.wakeDetail = reason, detail
	r.failedWakes++
	rec.failedAs = r.failedWakes
	rec.wakeAt = time.Time{}
	rec.retryAt = time.Now().Add(pause)
	for _, name := range rec.hello.info.Models {
		r.model(name).turn = 0 // others may try before it does again
	}
}

// endedSoon notes that an engine of a group ended by itself soon after it had come up.
// The first time it may start again at once.
func (r *Registry) endedSoon(rec *registration) {
	if rec.failures == 0 {
		rec.failures = 1
		return
	}
	r.wakeFailed(rec, "the engine ended soon after its start", "", 0)
}

// The causes of a Sleep, as the log has them.
const (
	causeIdle = "idle"
	causeRoom = "room for another model"
)

// sleep says Sleep to an idle agent, unless a slot was taken in the meantime.
func (r *Registry) sleep(rec *registration) {
	if rec.replica.gate.n.CompareAndSwap(0, closed) {
		r.saySleep(rec, causeIdle)
	}
}

// saySleep says Sleep to an agent that is out of routing, or whose slots are
// closed, with nothing in flight.
func (r *Registry) saySleep(rec *registration, cause string) {
	if !rec.upAt.IsZero() {
		rec.failures = 0
	}
	rec.slept, rec.closing, rec.cause = true, false, cause
	rec.wakeSent = false
	r.route(rec)
	rec.seq++
	rec.command = rec.seq
	rec.saidAt = time.Now()
	rec.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_Sleep{Sleep: &pb.Sleep{Seq: rec.seq}}})
}

// backendFailed takes rec out of routing because a request saw it refuse.
func (r *Registry) backendFailed(rec *registration, reason string) {
	if rec.failed {
		return
	}
	now := time.Now()
	// An engine that passes its check and refuses requests all the same must
	// not make requests and checks chase each other.
	if now.Sub(rec.backAt) > maxProbeDelay {
		rec.failRow = 0
	}
	r.log.Info().Str("agent", rec.hello.info.ID).Str("reason", reason).Msg("agent refused a request")
	rec.failed = true
	rec.failSeq = rec.seq + 1
	rec.probeAt = now.Add(probeDelay(rec.failRow))
	rec.failRow++
	r.probe(rec, now)
	r.settle(rec)
}

func probeDelay(row int) time.Duration {
	if row == 0 {
		return 0
	}
	return min(10*time.Millisecond<<min(row, 10), maxProbeDelay)
}

// probe asks a failed agent for its health when it is time to.
func (r *Registry) probe(rec *registration, now time.Time) {
	if rec.probeAt.IsZero() || now.Before(rec.probeAt) {
		return
	}
	rec.probeAt = time.Time{}
	rec.seq++
	rec.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_StatusRequest{StatusRequest: &pb.StatusRequest{Seq: rec.seq}}})
}

// wantedAny says whether a model of rec should be up.
func (r *Registry) wantedAny(rec *registration) bool {
	return slices.ContainsFunc(rec.hello.info.Models, func(name string) bool {
		m := r.models[name]
		return m != nil && m.need.Wanted()
	})
}

// demandAny says whether requests wait for a model of rec.
func (r *Registry) demandAny(rec *registration) bool {
	return slices.ContainsFunc(rec.hello.info.Models, func(name string) bool {
		m := r.models[name]
		return m != nil && m.need.Demand
	})
}

// Models lists the models that agents offer.
func (r *Registry) Models() []ModelState {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]ModelState, 0, len(r.models))
	for _, m := range r.models {
		if len(m.agents) > 0 {
			list = append(list, m.state())
		}
	}
	sortModels(list)
	return list
}

// Model sums up the agents of one model; ok is false when none offers it.
func (r *Registry) Model(name string) (state ModelState, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[name]
	if m == nil || len(m.agents) == 0 {
		return ModelState{Model: name}, false
	}
	return m.state(), true
}

// state counts m's agents.
func (m *model) state() ModelState {
	s := ModelState{Model: m.name, Wait: m.wait}
	var kinds kindSet
	for rec := range m.agents {
		kinds |= kindsOf(rec)
		switch {
		case rec.routed:
			s.Serving++
		case rec.waking():
			s.Waking = true
		case rec.asleep():
			s.Asleep++
		}
	}
	for _, k := range target.Kinds {
		if kinds&(1<<k) != 0 {
			s.Kinds = append(s.Kinds, k)
		}
	}
	return s
}
