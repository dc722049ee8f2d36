// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"sync/atomic"
	"time"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// AgentInfo is what a request needs to know about the agent that serves it. It
// never changes after the agent registered.
type AgentInfo struct {
	ID       string
	Instance string
	Engine   string
	Region   string
	Labels   map[string]string
	Models   []string
	Kinds    []target.Kind
	// Address is ip:port as Envoy takes it, IPv6 in brackets.
	Address string
}

// Outcome is the result of TakeFrom.
type Outcome uint8

// The results of TakeFrom.
const (
	// Taken: the slot is the caller's, who must release it.
	Taken Outcome = iota
	// Full: replicas are in routing, and none has a free slot.
	Full
	// None: no replica that fits is in routing.
	None
)

// closed is set in a gate's count while its replica is out of routing.
const closed = int64(1) << 40

// gate counts a replica's slots. The count and whether slots may be taken are
// one word, so that a replica is closed at zero or not at all.
type gate struct {
	n         atomic.Int64 // slots taken, plus closed
	others    atomic.Int64 // slots taken by other routers, as last reported
	cache     atomic.Int64 // use of the KV cache as last reported, in shares of full
	idleSince atomic.Int64 // when the last slot was released, since the epoch
	share     atomic.Int64 // slots that this router may take, of those that the agent divides
	slots     int64        // all of the agent
}

// inFlight is the number of slots taken.
func (g *gate) inFlight() int64 { return g.n.Load() &^ closed }

// divide sets the share to what the agent says, nil for all slots, and returns the one
// before.
func (g *gate) divide(share *uint32) (before int64) {
	if share == nil {
		return g.share.Swap(g.slots)
	}
	return g.share.Swap(min(max(int64(*share), 1), g.slots))
}

// replica is an agent as the hot path sees it.
type replica struct {
	info    *AgentInfo
	targets []target.Target
	gate    gate
	// before are replicas that the engine was to earlier instances of its agent: what
	// was sent to them is in flight until its slots are released.
	before []*replica
}

// earlier is the number of slots taken on earlier instances.
func (rep *replica) earlier() (n int64) {
	for _, b := range rep.before {
		n += b.gate.inFlight()
	}
	return n
}

// free is how many more slots may be taken when n are: of this router's share, and of
// all slots, which other routers take too where there are more of them than slots.
func (rep *replica) free(n int64) int64 {
	g, earlier := &rep.gate, rep.earlier()
	return min(g.share.Load()-n-earlier, g.slots-n-max(g.others.Load(), earlier))
}

// pool is one target's replicas in routing. The slice never changes.
type pool struct {
	replicas []*replica
	turn     atomic.Uint32
}

// full is the load of a replica with every slot taken.
const full = int64(1) << 20

// load is how busy the replica is with so many slots free of its share: by that, or by
// what its engine reports of its cache where that is more.
func (g *gate) load(free int64) int64 {
	share := g.share.Load()
	return max((share-free)*full/share, g.cache.Load())
}

// Filter chooses among the agents of a target.
type Filter interface {
	Fits(a *AgentInfo) bool
}

// pick finds the least loaded replica with a free slot, and its count. Among
// equals the turn decides. Without one it says why. A nil Filter fits all.
func (p *pool) pick(f Filter) (best *replica, count int64, o Outcome) {
	o = None
	var least int64
	size := uint32(len(p.replicas)) //nolint:gosec // far below the limit
	start := p.turn.Add(1)
	for i := range size {
		rep := p.replicas[(start+i)%size]
		n := rep.gate.n.Load()
		if n&closed != 0 || f != nil && !f.Fits(rep.info) {
			continue
		}
		free := rep.free(n)
		if free <= 0 {
			if best == nil {
				o = Full
			}
			continue
		}
		if load := rep.gate.load(free); best == nil || load < least {
			best, count, least, o = rep, n, load, Taken
		}
	}
	return best, count, o
}

// Serving says how many replicas of t are in routing.
func (r *Registry) Serving(t target.Target) int {
	if p := r.routing.of(t); p != nil {
		return len(p.replicas)
	}
	return 0
}

// TakeFrom takes a slot on the least loaded of the replicas of t that fit; a nil
// Filter fits all. The slot is nil unless the outcome is Taken; then the caller must
// release it.
func (r *Registry) TakeFrom(t target.Target, f Filter) (*Slot, Outcome) {
	for {
		p := r.routing.of(t)
		if p == nil {
			return nil, None
		}
		rep, count, o := p.pick(f)
		if o != Taken {
			return nil, o
		}
		// Another TakeFrom, a Release or the end of the replica came between: look again.
		if rep.gate.n.CompareAndSwap(count, count+1) {
			return &Slot{registry: r, replica: rep}, Taken
		}
	}
}

// Slot is the right to send one request to one replica.
type Slot struct {
	registry *Registry
	replica  *replica
	released atomic.Bool
}

// Agent is the agent that the slot is on.
func (s *Slot) Agent() *AgentInfo { return s.replica.info }

// Release gives the slot back. Calls after the first do nothing.
func (s *Slot) Release() {
	if !s.released.CompareAndSwap(false, true) {
		return
	}
	r, g := s.registry, &s.replica.gate
	// Before the count: who sees it at zero must see since when.
	g.idleSince.Store(int64(time.Since(r.epoch)))
	if g.n.Add(-1) == closed {
		r.emptied(s.replica)
	}
	r.changed(s.replica.targets)
}

// Changed says that the slot's replica may have become free for a request that had
// to leave it alone.
func (s *Slot) Changed() { s.registry.changed(s.replica.targets) }

// CameBack says that a request which was sent to the slot's replica came back to this
// router. Its agent is rejected.
func (s *Slot) CameBack() {
	r := s.registry
	r.update(func() {
		rec := r.agents[s.replica.info.ID]
		if rec == nil || rec.replica != s.replica {
			return
		}
		rej := &rejected{code: protocol.CodeAddressNotAllowed, message: "address: a request that was sent to " + s.replica.info.Address +
			" came back to this router: name the engine's own address, not the router's"}
		r.log.Warn().Str("agent", rec.hello.info.ID).Str("code", rej.code).Str("problem", rej.message).Msg("agent rejected")
		r.detach(rec, rej)
		r.settle(rec)
	})
}

// Failed says that the slot's replica refused or reset a request. It is out of
// routing until a Status, which is asked for at once, says that it is healthy.
// The slot is still to be released.
func (s *Slot) Failed(reason string) {
	r := s.registry
	r.update(func() {
		rec := r.agents[s.replica.info.ID]
		if rec != nil && rec.replica == s.replica {
			r.backendFailed(rec, reason)
		}
	})
}
