// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"cmp"
	"math"
	"slices"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// ModelState is the combined state of the agents of one model.
type ModelState struct {
	Model string
	Kinds []target.Kind
	// Serving is the number of replicas in routing, Asleep the number of agents that
	// need a Wake.
	Serving int
	Asleep  int
	// Waking: an agent is about to serve.
	Waking bool
	// Wait is the room of a group that the model waits for; nil: none.
	Wait *RoomWait
}

// Models returns the models that agents offer, sorted by name.
func (r *Registry) Models() []ModelState {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]ModelState, 0, len(r.models))
	for _, m := range r.models {
		if len(m.agents) > 0 {
			list = append(list, m.view())
		}
	}
	slices.SortFunc(list, func(a, b ModelState) int { return cmp.Compare(a.Model, b.Model) })
	return list
}

// Model returns the state of one model; ok is false if no agent offers it.
func (r *Registry) Model(name string) (state ModelState, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[name]
	if m == nil || len(m.agents) == 0 {
		return ModelState{Model: name}, false
	}
	return m.view(), true
}

func (m *model) view() ModelState {
	v := ModelState{Model: m.name, Wait: m.wait}
	var kinds kindSet
	for a := range m.agents {
		kinds |= a.hello.kinds()
		switch {
		case a.routed:
			v.Serving++
		case a.waking():
			v.Waking = true
		case a.asleep():
			v.Asleep++
		}
	}
	for _, k := range target.Kinds {
		if kinds&(1<<k) != 0 {
			v.Kinds = append(v.Kinds, k)
		}
	}
	return v
}

// Waking reports whether an agent is about to serve a model.
func (r *Registry) Waking(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[name]
	if m == nil {
		return false
	}
	for a := range m.agents {
		if a.waking() {
			return true
		}
	}
	return false
}

// WakeDetail returns the detail, for operators, of a model's last failed wake; empty if
// there is none.
func (r *Registry) WakeDetail(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.models[name]; m != nil {
		return m.wakeDetail
	}
	return ""
}

// Serving returns how many replicas of t are in routing.
func (r *Registry) Serving(t target.Target) int {
	if p := r.routing.poolOf(t); p != nil {
		return len(p.replicas)
	}
	return 0
}

// Capacity returns the capacity of the replicas of t.
func (r *Registry) Capacity(t target.Target) Capacity { return r.CapacityFrom(t, nil) }

// CapacityFrom returns the capacity of the replicas of t that fit; a nil Filter fits all.
func (r *Registry) CapacityFrom(t target.Target, f Filter) Capacity {
	return r.routing.capacity(t, f)
}

// RoomWait returns what a model waits for in a group, nil if it does not wait.
func (r *Registry) RoomWait(model string) *RoomWait {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.models[model]; m != nil {
		return m.wait
	}
	return nil
}

// AgentStatus is one agent for the status page.
type AgentStatus struct {
	*AgentInfo
	// State is serving, waking, asleep or leaving, as far as this router can tell;
	// Healthy is the health that the agent reported last; InRouting: it gets requests.
	State     string
	Healthy   bool
	InRouting bool
	CanWake   bool
	// IdleTimeout is 0 when the agent is never sent a Sleep for being idle.
	IdleTimeout time.Duration
	// Group is empty for an agent without one. Closing: it gets no requests, to make
	// room in its group.
	Group   string
	Closing bool
	// Slots is this router's share of the slots.
	Slots int64
	// InFlight counts this router's requests. The next four are the engine's own
	// numbers, nil if it does not report them.
	InFlight int64
	Reported *uint32
	Running  *uint32
	Waiting  *uint32
	KVUse    *float64
	// LastWakeError is empty unless the last wake failed.
	LastWakeError string
	// NextTry is when the agent may be woken again after a failed wake.
	NextTry  time.Time
	Joined   time.Time
	LastSeen time.Time
}

// IdleFor returns how long an agent has been in routing without requests of this router. It
// returns the longest Duration for an agent that is not registered.
func (r *Registry) IdleFor(id string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[id]
	switch {
	case a == nil:
		return math.MaxInt64
	case a.replica.gate.inFlight() > 0:
		return 0
	}
	return time.Since(a.replica.gate.idleFrom())
}

// InFlight returns how many of this router's requests the agents of a model have, including
// agents that sent Bye.
func (r *Registry) InFlight(model string) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.agents {
		if in := a.replica.gate.inFlight(); in > 0 && slices.Contains(a.hello.info.Models, model) {
			n += in
		}
	}
	return n
}

// Agents returns the registered agents, sorted by id.
func (r *Registry) Agents() []AgentStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]AgentStatus, 0, len(r.agents))
	for _, a := range r.agents {
		list = append(list, a.view())
	}
	slices.SortFunc(list, func(a, b AgentStatus) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

func (a *registration) view() AgentStatus {
	v := AgentStatus{
		AgentInfo: a.replica.info,
		State:     a.stateName(), Healthy: a.healthy, InRouting: a.routed,
		CanWake: a.hello.canWake, IdleTimeout: a.hello.idleTimeout,
		Group: a.hello.group.name, Closing: a.closing,
		Slots: a.replica.gate.load().share(), InFlight: a.replica.gate.inFlight(),
		Joined: a.joined, LastSeen: a.heartbeat.at,
	}
	if f := a.failures; f.blocked {
		v.LastWakeError, v.NextTry = f.reason, f.retryAt
		if f.detail != "" {
			v.LastWakeError += ": " + f.detail
		}
	}
	if s := a.heartbeat.status; s != nil {
		v.Reported, v.Running, v.Waiting, v.KVUse = s.InFlight, s.Running, s.Waiting, s.KvUse
	}
	return v
}

func (s *state) stateName() string {
	switch {
	case s.leaving:
		return "leaving"
	case s.waking():
		return stateName(pb.State_STATE_WAKING)
	case s.asleep():
		return stateName(pb.State_STATE_ASLEEP)
	}
	return stateName(s.reported)
}

func stateName(s pb.State) string {
	switch s {
	case pb.State_STATE_ASLEEP:
		return "asleep"
	case pb.State_STATE_WAKING:
		return "waking"
	case pb.State_STATE_SERVING:
		return "serving"
	case pb.State_STATE_UNSPECIFIED:
	}
	return "unknown"
}
