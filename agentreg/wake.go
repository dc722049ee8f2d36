// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/sitemap"
)

// wakeCooldown is how long an agent whose wake failed is left alone while the
// same wish lasts. A new wish asks it again at once.
const wakeCooldown = 10 * time.Second

// maxProbeDelay bounds the wait before an agent that keeps refusing requests
// is asked for its health again.
const maxProbeDelay = 2 * time.Second

// model is what the registry knows about one name.
type model struct {
	name        string
	agents      map[*record]struct{}
	wanted      bool
	wantedSince time.Time
	// exhausted: OnWakeFailed was called and no Wake sent since.
	exhausted bool
	// wakeReason is why the last wake failed, for those who wait; wakeDetail is what
	// they are not told.
	wakeReason, wakeDetail string
	// turn is its place among the models that need an agent of a group, 0 for
	// none.
	turn uint64
}

// model gives the entry of name, which tidy drops when nothing needs it.
func (r *Registry) model(name string) *model {
	m := r.models[name]
	if m == nil {
		m = &model{name: name, agents: map[*record]struct{}{}}
		r.models[name] = m
	}
	return m
}

func (r *Registry) tidy(m *model) {
	if len(m.agents) == 0 && !m.wanted {
		delete(r.models, m.name)
	}
}

// SetWanted says whether anybody waits for model. While it is wanted and
// nothing serves it, agents that can are asked to wake. Going from not wanted
// to wanted is a new wish: agents that failed to wake before are asked again.
func (r *Registry) SetWanted(name string, wanted bool) {
	r.update(func() {
		m := r.models[name]
		if !wanted && m == nil {
			return
		}
		m = r.model(name)
		if m.wanted == wanted {
			return
		}
		m.wanted = wanted
		if wanted {
			m.wantedSince = time.Now()
			m.exhausted = false
		}
		for rec := range m.agents {
			if wanted {
				rec.wakeFailed = false
			}
			r.arm(rec)
		}
		r.reconcile(m)
		in := newArea()
		in.addModel(m)
		r.arbitrate(r.grown(in))
		r.tidy(m)
	})
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
func (r *Registry) wake(rec *record, m *model) {
	r.log.Info().Str("model", m.name).Str("agent", rec.hello.info.ID).Msg("waking")
	m.exhausted = false
	rec.slept = false
	rec.wakeSent = true
	rec.wakeAt = time.Now()
	rec.saidAt = rec.wakeAt
	rec.seq++
	rec.command = rec.seq
	rec.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_Wake{Wake: &pb.Wake{Model: m.name, Seq: rec.seq}}})
	r.arm(rec)
}

// wakeFailed notes that rec's engine could not be woken. The detail is for operators
// alone.
func (r *Registry) wakeFailed(rec *record, reason, detail string) {
	line := r.log.Info().Str("agent", rec.hello.info.ID).Strs("models", rec.hello.info.Models).Str("reason", reason)
	if detail != "" {
		line = line.Str("detail", detail)
	}
	line.Msg("wake failed")
	rec.wakeSent = false
	rec.reported = pb.State_STATE_ASLEEP
	rec.wakeFailed = true
	rec.wakeReason, rec.wakeDetail = reason, detail
	rec.wakeAt = time.Time{}
	rec.retryAt = time.Now().Add(wakeCooldown)
	for _, name := range rec.hello.info.Models {
		m := r.model(name)
		m.wakeReason, m.wakeDetail = reason, detail
		m.turn = 0 // others may try before it does again
	}
}

// The causes of a Sleep, as the log has them.
const (
	causeIdle = "idle"
	causeRoom = "room for another model"
)

// sleep says Sleep to an idle agent, unless a slot was taken in the meantime.
func (r *Registry) sleep(rec *record) {
	if rec.replica.gate.n.CompareAndSwap(0, closed) {
		r.saySleep(rec, causeIdle)
	}
}

// saySleep says Sleep to an agent that is out of routing, or whose slots are
// closed, with nothing in flight.
func (r *Registry) saySleep(rec *record, cause string) {
	rec.slept, rec.closing, rec.cause = true, false, cause
	rec.wakeSent = false
	r.route(rec)
	rec.seq++
	rec.command = rec.seq
	rec.saidAt = time.Now()
	rec.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_Sleep{Sleep: &pb.Sleep{Seq: rec.seq}}})
}

// backendFailed takes rec out of routing because a request saw it refuse.
func (r *Registry) backendFailed(rec *record, reason string) {
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
func (r *Registry) probe(rec *record, now time.Time) {
	if rec.probeAt.IsZero() || now.Before(rec.probeAt) {
		return
	}
	rec.probeAt = time.Time{}
	rec.seq++
	rec.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_StatusRequest{StatusRequest: &pb.StatusRequest{Seq: rec.seq}}})
}

// wantedAny says whether anybody waits for a model of rec.
func (r *Registry) wantedAny(rec *record) bool {
	for _, name := range rec.hello.info.Models {
		if m := r.models[name]; m != nil && m.wanted {
			return true
		}
	}
	return false
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
	s := ModelState{Model: m.name}
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
	for _, k := range sitemap.Kinds {
		if kinds&(1<<k) != 0 {
			s.Kinds = append(s.Kinds, k)
		}
	}
	return s
}
