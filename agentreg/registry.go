// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"net/netip"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// Options are a registry's settings. Callbacks that are nil are not called.
type Options struct {
	Log zerolog.Logger
	// Liveness is how long an agent may be silent; 0 means protocol.DefaultLiveness.
	Liveness time.Duration
	// GroupGrace is how long no agent of a group is woken after the start: agents that are
	// awake may not have reconnected yet. 0 if there can be none.
	GroupGrace time.Duration
	// AllowCIDR are the networks that the address of an engine may be in besides the
	// agent's own address.
	AllowCIDR []netip.Prefix
	// OnChange is called when a replica of t entered or left routing, or a slot became
	// free. Like all callbacks it is called from any goroutine without locks held, and
	// must return quickly.
	OnChange func(t target.Target)
	// OnWakeFailed is called when no agent that could serve model can be woken. It is
	// not called again before another Wake was sent for the model.
	OnWakeFailed func(model, reason string)
	// OnServing is called when an agent entered routing, before OnChange is called for
	// its targets.
	OnServing func(a *AgentInfo)
	// OnLost is called when an agent left routing although nobody asked for it: its stream ended,
	// it was silent, its engine does not answer or has ended. An engine that another router put to
	// sleep counts, because it looks the same.
	OnLost func(a *AgentInfo)
	// OnFewer is called when at two heartbeats in a row an agent's engine had fewer
	// requests than this router has slots taken there: no more than most. first is
	// the time of the first of the two heartbeats.
	OnFewer func(a *AgentInfo, most int, first time.Time)
	// SlotWaiters returns how many requests wait for a slot for t; nil: none ever does.
	SlotWaiters func(t target.Target) int
}

// Registry holds the registered agents and the models that they serve. Its methods may
// be called from any goroutine, also from the callbacks. doc.go names its parts.
type Registry struct {
	opts     Options
	routerID string
	epoch    time.Time // when the registry was made

	routing routing // has its own lock

	mu         sync.Mutex
	agents     map[string]*registration // by id
	models     models
	groups     groups
	departed   departed
	superseded instanceSet
	sessions   map[*session]struct{} // open streams
	former     map[string]string     // the sockets of routers that this one has replaced, by id

	draining    bool
	turns       uint64 // the last one that a model was given
	failedWakes uint64 // how many wakes have failed
	due         callbacks
}

// New returns an empty registry.
func New(o Options) *Registry {
	if o.Liveness <= 0 {
		o.Liveness = protocol.DefaultLiveness
	}
	return &Registry{
		opts:     o,
		routerID: uuid.NewString(),
		epoch:    time.Now(),
		routing:  routing{pools: map[target.Target]*pool{}},
		agents:   map[string]*registration{},
		models:   models{},
		groups:   groups{},
		departed: departed{},
		sessions: map[*session]struct{}{},
	}
}

// callbacks are the calls that a change made due. They are collected with the mutex held
// and made after it is unlocked.
type callbacks struct {
	serving []*AgentInfo
	lost    []*AgentInfo
	changed []target.Target
	failed  []wakeFailure
	fewer   []fewer
}

// fewer describes an engine that has fewer requests than slots are taken: at most most,
// since the heartbeat that came at first.
type fewer struct {
	agent *AgentInfo
	most  int
	first time.Time
}

type wakeFailure struct{ model, reason string }

// update runs change with the mutex held, and afterwards the callbacks that it made due.
func (r *Registry) update(change func()) {
	r.mu.Lock()
	change()
	due := r.due
	r.due = callbacks{}
	r.mu.Unlock()
	each(due.serving, r.opts.OnServing)
	each(due.lost, r.opts.OnLost)
	r.changed(due.changed)
	if r.opts.OnFewer != nil {
		for _, f := range due.fewer {
			r.opts.OnFewer(f.agent, f.most, f.first)
		}
	}
	if r.opts.OnWakeFailed != nil {
		for _, f := range due.failed {
			r.opts.OnWakeFailed(f.model, f.reason)
		}
	}
}

// each calls f for each of the agents; a nil f is not called.
func each(agents []*AgentInfo, f func(*AgentInfo)) {
	if f == nil {
		return
	}
	for _, a := range agents {
		f(a)
	}
}

func (r *Registry) changed(targets []target.Target) {
	if r.opts.OnChange == nil {
		return
	}
	for _, t := range targets {
		r.opts.OnChange(t)
	}
}

// Succeed tells all agents that another process is about to replace this router at its address,
// and returns the ids of those that are registered. Each connects to it too.
func (r *Registry) Succeed() (agents []string) {
	r.update(func() {
		for s := range r.sessions {
			if s.agent != nil && !s.own {
				s.send(&pb.RouterMessage{Message: &pb.RouterMessage_Successor{Successor: &pb.Successor{}}})
				agents = append(agents, s.agent.replica.info.ID)
			}
		}
	})
	return agents
}

// Drain ends all streams and accepts no new ones. The agents keep their streams to other
// routers, and reconnect to the process that replaces this one.
func (r *Registry) Drain() {
	r.update(func() {
		r.draining = true
		for _, a := range r.agents {
			a.replica.gate.close()
			a.replica.gate.setShare(new(uint32)) // from now on it keeps only what is taken
		}
		for s := range r.sessions {
			s.end(errDraining)
		}
	})
}
