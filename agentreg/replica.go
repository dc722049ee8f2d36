// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"reflect"
	"sync/atomic"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
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

// replica is an agent as routing sees it.
type replica struct {
	info    *AgentInfo
	targets []target.Target
	gate    gate
	// earlier are replicas that stand for the same engine, of earlier instances of its
	// agent. What was sent to them is in flight until its slots are released.
	earlier []*replica
}

// closed is set in a gate's count while its replica is out of routing.
const closed = int64(1) << 40

// full is the load of a replica with every slot taken.
const full = int64(1) << 20

// gate counts a replica's slots. The count and whether slots may be taken are in one
// atomic number, so that closeIdle cannot close a gate while a slot is taken.
type gate struct {
	epoch     time.Time
	n         atomic.Int64 // slots taken, plus closed
	others    atomic.Int64 // slots taken by other routers, as last reported
	cache     atomic.Int64 // use of the KV cache as last reported, in parts of full
	idleSince atomic.Int64 // when the last slot was released, since epoch
	share     atomic.Int64 // slots that this router may take, of those that the agent divides
	slots     int64        // all of the agent
}

// open lets slots be taken.
func (g *gate) open() {
	g.markIdle()
	g.n.And(^closed)
}

// close lets no more slots be taken.
func (g *gate) close() { g.n.Or(closed) }

// closeIdle closes the gate unless a slot is taken, and reports whether it did.
func (g *gate) closeIdle() bool { return g.n.CompareAndSwap(0, closed) }

// inFlight is the number of slots taken.
func (g *gate) inFlight() int64 { return g.n.Load() &^ closed }

func (g *gate) markIdle() { g.idleSince.Store(int64(time.Since(g.epoch))) }

// idleFrom is when the last slot was released, or the gate was opened.
func (g *gate) idleFrom() time.Time { return g.epoch.Add(time.Duration(g.idleSince.Load())) }

// divide sets the share to what the agent reports, nil for all slots, and returns the
// previous one.
func (g *gate) divide(share *uint32) (before int64) {
	if share == nil {
		return g.share.Swap(g.slots)
	}
	return g.share.Swap(min(max(int64(*share), 1), g.slots))
}

// report notes the numbers of a Status: how many of the agent's slots are for this
// router, how many other routers use, and how full the engine's cache is. It reports
// whether more slots may be free. The engine's number of requests is moments old, so it
// counts only where there are other routers.
func (g *gate) report(s *pb.Status) (more bool) {
	var others int64
	if s.InFlight != nil && s.GetRouters() > 1 {
		others = max(int64(s.GetInFlight())-g.inFlight(), 0)
	}
	g.cache.Store(int64(min(max(s.GetKvUse(), 0), 1) * float64(full)))
	othersBefore, shareBefore := g.others.Swap(others), g.divide(s.Slots)
	return others < othersBefore || shareBefore < g.share.Load()
}

// load is how busy the replica is with so many slots free of its share: by that, or by
// what its engine reports of its cache where that is more.
func (g *gate) load(free int64) int64 {
	share := g.share.Load()
	return max((share-free)*full/share, g.cache.Load())
}

// takenEarlier is the number of slots taken on earlier instances.
func (rep *replica) takenEarlier() (n int64) {
	for _, e := range rep.earlier {
		n += e.gate.inFlight()
	}
	return n
}

// free is how many more slots may be taken when n are: of this router's share, and of
// all slots, which other routers take too where there are more of them than slots.
func (rep *replica) free(n int64) int64 {
	g, earlier := &rep.gate, rep.takenEarlier()
	return min(g.share.Load()-n-earlier, g.slots-n-max(g.others.Load(), earlier))
}

// departed holds the replicas of agents that left with slots taken, by the agent's
// instance. A replica is in it until its last slot is released.
type departed map[string]*replica

// replicaFor returns the replica of an agent that registers: the one that the same
// instance had before, with the slots that are still taken on it, or a new one. The
// previous agent with the same id is old, nil if there is none.
func (d departed) replicaFor(h hello, old *registration, epoch time.Time) *replica {
	same := d[h.info.Instance]
	if old != nil && old.hello.info.Instance == h.info.Instance {
		same = old.replica
	}
	earlier := d.takenAt(h.info.Address, old)
	delete(d, h.info.Instance)
	if same != nil && same.gate.slots == h.slots && reflect.DeepEqual(same.info, h.info) {
		return same
	}
	rep := &replica{info: h.info, targets: h.targets(), earlier: earlier}
	rep.gate.slots, rep.gate.epoch = h.slots, epoch
	rep.gate.n.Store(closed)
	return rep
}

// takenAt returns the replicas at an address that have slots taken.
func (d departed) takenAt(address string, old *registration) (taken []*replica) {
	for _, rep := range d {
		if rep.info.Address == address {
			taken = append(taken, rep)
		}
	}
	if old != nil && old.hello.info.Address == address && old.replica.gate.inFlight() > 0 {
		taken = append(taken, old.replica)
	}
	return taken
}
