// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"net/netip"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// Options are a registry's settings. Callbacks that are nil are not called.
type Options struct {
	Log zerolog.Logger
	// Liveness is how long an agent may be silent; 0 stands for protocol.DefaultLiveness.
	Liveness time.Duration
	// GroupGrace is how long no agent of a group is woken after the start; 0 is for a
	// router that knows that none can be awake.
	GroupGrace time.Duration
	// AllowCIDR are the networks that an agent may name an address in besides
	// its own.
	AllowCIDR []netip.Prefix
	// OnChange says that something about t changed: an agent joined or left
	// routing, or a slot became free. It is called without locks from any
	// goroutine, and must be cheap.
	OnChange func(t target.Target)
	// OnWakeFailed says that every agent that could be asked to wake model has
	// failed. It is called once until another Wake is sent for the model.
	OnWakeFailed func(model, reason string)
	// OnServing says that an agent is in routing. It is called before OnChange
	// is called for the agent's targets.
	OnServing func(a *AgentInfo)
	// OnFewer says that at two heartbeats in a row, of which the first came at the
	// time, the agent's engine had no more requests than most, fewer than this
	// router has slots taken.
	OnFewer func(a *AgentInfo, most int, first time.Time)
}

// Registry is the table of agents. Its methods may be called from any
// goroutine, also from the callbacks.
type Registry struct {
	opts     Options
	log      zerolog.Logger
	routerID string
	epoch    time.Time

	// routing changes under mu, and is read without it.
	routing routing

	mu          sync.Mutex
	agents      map[string]*registration
	models      map[string]*model
	groups      map[string]*group
	turns       uint64              // given to models in need of a group's room
	failedWakes uint64              // counts wakes that failed
	lingering   map[string]*replica // by instance: agents that left with slots taken
	superseded  instanceSet
	sessions    map[*session]struct{}
	draining    bool
	fx          effects
}

// New makes an empty registry.
func New(o Options) *Registry {
	if o.Liveness <= 0 {
		o.Liveness = protocol.DefaultLiveness
	}
	r := &Registry{
		opts:      o,
		log:       o.Log,
		routerID:  uuid.NewString(),
		epoch:     time.Now(),
		agents:    map[string]*registration{},
		models:    map[string]*model{},
		groups:    map[string]*group{},
		lingering: map[string]*replica{},
		sessions:  map[*session]struct{}{},
	}
	r.routing.pools = map[target.Target]*pool{}
	return r
}

// effects are the callbacks that a change made due. They are collected under
// the mutex and run after it.
type effects struct {
	serving []*AgentInfo
	changed []target.Target
	failed  []wakeFailure
	fewer   []fewer
}

type fewer struct {
	agent *AgentInfo
	most  int
	first time.Time
}

type wakeFailure struct{ model, reason string }

// update runs change under the mutex, then the callbacks it made due.
func (r *Registry) update(change func()) {
	r.mu.Lock()
	change()
	fx := r.fx
	r.fx = effects{}
	r.mu.Unlock()
	if r.opts.OnServing != nil {
		for _, a := range fx.serving {
			r.opts.OnServing(a)
		}
	}
	r.changed(fx.changed)
	if r.opts.OnFewer != nil {
		for _, f := range fx.fewer {
			r.opts.OnFewer(f.agent, f.most, f.first)
		}
	}
	if r.opts.OnWakeFailed != nil {
		for _, f := range fx.failed {
			r.opts.OnWakeFailed(f.model, f.reason)
		}
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

// Drain ends every agent's stream and takes no new ones. The agents stay with
// their other routers, or connect again to whoever follows.
func (r *Registry) Drain() {
	r.update(func() {
		r.draining = true
		for s := range r.sessions {
			s.end(errDraining)
		}
	})
}
