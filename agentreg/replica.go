// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"reflect"
	"sync/atomic"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

// AgentInfo describes an agent to the requests that it serves. It does not change after the
// agent has registered.
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

// replica is the engine of an agent, in routing or not.
type replica struct {
	info    *AgentInfo
	targets []target.Target
	gate    gate
	// earlier are the replicas that earlier agents had at the same address. Requests that
	// were sent to them are in flight until their slots are released.
	earlier []*replica
}

// closed is the bit that is set in a gate's count while its replica is out of routing.
const closed = int64(1) << 40

// full is the load of a replica whose slots are all taken.
const full = int64(1) << 20

// gate counts a replica's slots. The count and whether slots may be taken are one atomic
// number, so that closeIdle cannot close a gate on which a slot is being taken.
type gate struct {
	epoch     time.Time
	taken     atomic.Int64 // slots taken, plus closed
	others    atomic.Int64 // slots taken by other routers, as last reported
	cache     atomic.Int64 // use of the KV cache as last reported, from 0 to full
	idleSince atomic.Int64 // when the last slot was released, since epoch
	share     atomic.Int64 // this router's share of the slots
	slots     int64        // all slots of the agent
}

// open allows slots to be taken.
func (g *gate) open() {
	g.markIdle()
	g.taken.And(^closed)
}

// close stops slots from being taken.
func (g *gate) close() { g.taken.Or(closed) }

// closeIdle closes the gate unless a slot is taken, and reports whether it did.
func (g *gate) closeIdle() bool { return g.taken.CompareAndSwap(0, closed) }

// inFlight returns the number of slots taken.
func (g *gate) inFlight() int64 { return g.taken.Load() &^ closed }

func (g *gate) markIdle() { g.idleSince.Store(int64(time.Since(g.epoch))) }

// idleFrom returns when the last slot was released or the gate was opened.
func (g *gate) idleFrom() time.Time { return g.epoch.Add(time.Duration(g.idleSince.Load())) }

// setShare sets this router's share of the slots as the agent reports it, nil for all of
// them, and returns the previous share.
func (g *gate) setShare(share *uint32) (before int64) {
	if share == nil {
		return g.share.Swap(g.slots)
	}
	return g.share.Swap(min(max(int64(*share), 1), g.slots))
}

// update records the numbers of a Status: this router's share of the slots, the slots that
// other routers use, and the use of the engine's cache. It reports whether more slots may
// be free. The engine's number of requests is slightly out of date, so it is ignored if
// there are no other routers.
func (g *gate) update(s *pb.Status) (more bool) {
	var others int64
	if s.InFlight != nil && s.GetRouters() > 1 {
		others = max(int64(s.GetInFlight())-g.inFlight(), 0)
	}
	g.cache.Store(int64(min(max(s.GetKvUse(), 0), 1) * float64(full)))
	othersBefore, shareBefore := g.others.Swap(others), g.setShare(s.Slots)
	return others < othersBefore || shareBefore < g.share.Load()
}

// load returns how busy the replica is, from 0 to full, if free slots of its share are
// free: the part of the share that is taken, or the use of the engine's cache if higher.
func (g *gate) load(free int64) int64 {
	share := g.share.Load()
	return max((share-free)*full/share, g.cache.Load())
}

// takenEarlier returns the number of slots still taken on earlier replicas.
func (rep *replica) takenEarlier() (n int64) {
	for _, e := range rep.earlier {
		n += e.gate.inFlight()
	}
	return n
}

// free returns how many more slots may be taken if n are taken. This router's share limits
// it, and so do all slots of the agent: every router has a share of at least one slot, so
// the shares may add up to more than there are.
func (rep *replica) free(n int64) int64 {
	g, earlier := &rep.gate, rep.takenEarlier()
	return min(g.share.Load()-n-earlier, g.slots-n-max(g.others.Load(), earlier))
}

// departed holds the replicas of agents that left while slots were taken, by instance, until
// the last slot is released.
type departed map[string]*replica

// replicaFor returns the replica for an agent that registers: the one that the same
// instance had before, with the slots that are still taken on it, or a new one. old is the
// registered agent with the same id, nil if there is none.
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
	rep.gate.taken.Store(closed)
	return rep
}

// takenAt returns the replicas of departed agents and of old that have this address and
// slots taken.
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
