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
	usage   usage
}

// full is the load of a replica whose slots are all taken.
const full = int64(1) << 20

// gate counts a replica's slots. The count, this router's share of the slots, and whether
// slots may be taken at all are one atomic word: no slot is taken by a share that has been
// reduced meanwhile, and closeIdle cannot close a gate on which a slot is being taken.
type gate struct {
	epoch     time.Time
	state     atomic.Uint64 // a word
	cache     atomic.Int64  // use of the KV cache as last reported, from 0 to full
	idleSince atomic.Int64  // when the last slot was released, since epoch
	slots     int64         // all slots of the agent
}

// open allows slots to be taken.
func (g *gate) open() {
	g.markIdle()
	g.state.And(^closedBit)
}

// close stops slots from being taken.
func (g *gate) close() { g.state.Or(closedBit) }

// closeIdle closes the gate unless a slot is taken, and reports whether it did.
func (g *gate) closeIdle() bool {
	for {
		w := g.load()
		if w.taken() > 0 || w.closed() {
			return false
		}
		if g.state.CompareAndSwap(uint64(w), uint64(w)|closedBit) {
			return true
		}
	}
}

func (g *gate) load() word { return word(g.state.Load()) }

// inFlight returns the number of slots taken.
func (g *gate) inFlight() int64 { return g.load().taken() }

// release releases a slot, and returns the word after that.
func (g *gate) release() word { return word(g.state.Add(oneReleased - 1)) }

func (g *gate) markIdle() { g.idleSince.Store(int64(time.Since(g.epoch))) }

// idleFrom returns when the last slot was released or the gate was opened.
func (g *gate) idleFrom() time.Time { return g.epoch.Add(time.Duration(g.idleSince.Load())) }

// setShare sets this router's share of the slots as the agent reports it, nil for all of
// them, and reports whether it rose.
func (g *gate) setShare(reported *uint32) (rose bool) {
	share := g.slots
	if reported != nil {
		share = min(int64(*reported), g.slots)
	}
	for {
		w := g.load()
		if g.state.CompareAndSwap(uint64(w), uint64(w.withShare(share))) {
			return share > w.share()
		}
	}
}

// update records the numbers of a Status: this router's share of the slots, and the use of the
// engine's cache. It reports whether more slots may be free.
func (g *gate) update(s *pb.Status) (more bool) {
	g.cache.Store(int64(min(max(s.GetKvUse(), 0), 1) * float64(full)))
	return g.setShare(s.Slots)
}

// loadOf returns how busy the replica is, from 0 to full, if free slots of a share are free:
// the part of the share that is taken, or the use of the engine's cache if higher.
func (g *gate) loadOf(share, free int64) int64 {
	return max((share-free)*full/share, g.cache.Load())
}

// takenEarlier returns the number of slots still taken on earlier replicas.
func (rep *replica) takenEarlier() (n int64) {
	for _, e := range rep.earlier {
		n += e.gate.inFlight()
	}
	return n
}

// free returns how many more slots may be taken.
func (rep *replica) free(w word) int64 { return w.share() - w.taken() - rep.takenEarlier() }

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
	rep.gate.close()
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
