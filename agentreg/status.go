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

// ModelState sums up the agents of one model.
type ModelState struct {
	Model string
	Kinds []target.Kind
	// Serving is the number of replicas in routing, Asleep of those that a Wake
	// would help.
	Serving int
	Asleep  int
	// Waking: an agent is on its way.
	Waking bool
	// Wait is the room of a group that it waits for; nil: none.
	Wait *RoomWait
}

func sortModels(list []ModelState) {
	slices.SortFunc(list, func(a, b ModelState) int { return cmp.Compare(a.Model, b.Model) })
}

// RoomWait says what a model waits for in a group, nil for nothing.
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
	// State is serving, waking, asleep or leaving, from this router's view;
	// Healthy and InRouting say whether a serving agent gets requests.
	State     string
	Healthy   bool
	InRouting bool
	CanWake   bool
	// IdleTimeout is 0 when the agent is never told to sleep.
	IdleTimeout time.Duration
	// Group is empty for an agent without one. Closing: it takes no requests, to
	// make room in its group.
	Group   string
	Closing bool
	// Slots are those that this router may take: the agent divides its own among its
	// routers.
	Slots int64
	// InFlight counts this router's requests. The others are the engine's own
	// numbers, nil where it does not tell.
	InFlight int64
	Reported *uint32
	Running  *uint32
	Waiting  *uint32
	KVUse    *float64
	// LastWakeError is empty unless the last wake failed.
	LastWakeError string
	// NextTry is when the agent may be woken again after that.
	NextTry  time.Time
	Joined   time.Time
	LastSeen time.Time
}

// IdleFor says how long an agent has had none of this router's requests since it
// came into routing; without end for one that is not registered.
func (r *Registry) IdleFor(id string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.agents[id]
	switch {
	case rec == nil:
		return math.MaxInt64
	case rec.replica.gate.inFlight() > 0:
		return 0
	}
	return time.Since(r.epoch) - time.Duration(rec.replica.gate.idleSince.Load())
}

// InFlight is how many of this router's requests the agents of a model have, also those
// that said Bye.
func (r *Registry) InFlight(model string) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.agents {
		if in := rec.replica.gate.inFlight(); in > 0 && slices.Contains(rec.hello.info.Models, model) {
			n += in
		}
	}
	return n
}

// Agents lists the registered agents by id.
func (r *Registry) Agents() []AgentStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]AgentStatus, 0, len(r.agents))
	for _, rec := range r.agents {
		list = append(list, rec.view())
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
		Slots: a.replica.gate.share.Load(), InFlight: a.replica.gate.inFlight(),
		Joined: a.joined, LastSeen: a.lastSeen,
	}
	if a.wakeFailed {
		v.LastWakeError, v.NextTry = a.wakeReason, a.retryAt
		if a.wakeDetail != "" {
			v.LastWakeError += ": " + a.wakeDetail
		}
	}
	if s := a.status; s != nil {
		v.Reported, v.Running, v.Waiting, v.KVUse = s.InFlight, s.Running, s.Waiting, s.KvUse
	}
	return v
}

func (a *registration) stateName() string {
	switch {
	case a.leaving:
		return "leaving"
	case a.waking():
		return stateName(pb.State_STATE_WAKING)
	case a.asleep():
		return stateName(pb.State_STATE_ASLEEP)
	}
	return stateName(a.reported)
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

// instanceSet remembers the last instances that were superseded, so that none
// of them comes back and supersedes its successor.
type instanceSet struct {
	order []string
	in    map[string]struct{}
}

// maxSuperseded bounds an instanceSet.
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
