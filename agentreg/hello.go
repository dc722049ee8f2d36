// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/internal/target"
)

// maxSpan is the longest duration of a Hello. It keeps sums of times from overflowing.
const maxSpan = 365 * 24 * time.Hour

// problems collects the problems of a Hello, by field.
type problems struct{ settings.Problems }

// checkHello checks an agent's first message; m is nil if that was not a Hello. A rejection
// with the code invalid_hello lists all problems.
func checkHello(m *pb.Hello, from peerAddr, allow []netip.Prefix) (hello, *rejected) {
	if m == nil {
		return hello{}, &rejected{code: protocol.CodeInvalidHello, message: "the first message must be a Hello"}
	}
	var p problems
	p.name("agent_id", m.GetAgentId())
	if _, err := uuid.Parse(m.GetInstance()); err != nil || len(m.GetInstance()) != 36 {
		p.Add("instance", "must be a UUID")
	}
	address, err := checkAddress(m.GetAddress(), from)
	p.Check("address", err)
	p.models(m.GetModels())
	kinds := p.kinds(m.GetKinds())
	if m.GetSlots() < 1 || m.GetSlots() > protocol.MaxSlots {
		p.Add("slots", "must be between 1 and %d, is %d", protocol.MaxSlots, m.GetSlots())
	}
	p.name("engine", m.GetEngine())
	if m.GetRegion() != "" {
		p.name("region", m.GetRegion())
	}
	p.labels(m.GetLabels())
	if m.GetState() < pb.State_STATE_ASLEEP || m.GetState() > pb.State_STATE_SERVING {
		p.Add("state", "must be asleep, waking or serving")
	}
	idle := p.span("idle_timeout", m.GetIdleTimeout(), m.GetCanWake())
	minUp := p.span("min_up_time", m.GetMinUpTime(), m.GetCanWake())
	servingFor := p.span("serving_for", m.GetServingFor(), m.GetCanWake())
	group := p.group(m.GetGroup())
	if len(p.Problems) > 0 {
		return hello{}, &rejected{code: protocol.CodeInvalidHello, message: p.Join("; ")}
	}
	if err := allowed(address.Addr(), from, allow); err != nil {
		return hello{}, &rejected{code: protocol.CodeAddressNotAllowed, message: "address: " + err.Error()}
	}
	return hello{
		info: &AgentInfo{
			ID: m.GetAgentId(), Instance: m.GetInstance(), Engine: m.GetEngine(), Region: m.GetRegion(),
			Labels: maps.Clone(m.GetLabels()), Models: slices.Clone(m.GetModels()), Kinds: kinds,
			Address: address.String(),
		},
		slots: int64(m.GetSlots()), share: m.Share, offer: m.GetOffer(), state: m.GetState(), canWake: m.GetCanWake(), idleTimeout: idle,
		minUp: minUp, servingFor: servingFor, group: group,
	}, nil
}

// name checks a required name.
func (p *problems) name(field, s string) { p.Check(field, protocol.CheckName(s)) }

func (p *problems) models(models []string) {
	if len(models) < 1 || len(models) > protocol.MaxModels {
		p.Add("models", "must be between 1 and %d, are %d", protocol.MaxModels, len(models))
		return
	}
	seen := map[string]bool{}
	for i, m := range models {
		field := fmt.Sprintf("models[%d]", i)
		p.name(field, m)
		if seen[m] {
			p.Add(field, "is given twice")
		}
		seen[m] = true
	}
}

// kinds returns the kinds with these names, sorted and without duplicates.
func (p *problems) kinds(names []string) []target.Kind {
	if len(names) < 1 || len(names) > protocol.MaxKinds {
		p.Add("kinds", "must be between 1 and %d, are %d", protocol.MaxKinds, len(names))
		return nil
	}
	kinds := make([]target.Kind, 0, len(names))
	for i, name := range names {
		k, err := protocol.ParseKind(name)
		if err != nil {
			p.Add(fmt.Sprintf("kinds[%d]", i), "must be chat (llm), embedding or rerank (reranker)")
			continue
		}
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

func (p *problems) labels(labels map[string]string) {
	if len(labels) > protocol.MaxLabels {
		p.Add("labels", "must be at most %d, are %d", protocol.MaxLabels, len(labels))
		return
	}
	for _, k := range slices.SortedFunc(maps.Keys(labels), cmp.Compare[string]) {
		if err := protocol.CheckName(k); err != nil {
			p.Add(fmt.Sprintf("labels[%.300q]", k), "the name %s", err.Error())
		}
		if v := labels[k]; v != "" {
			p.name(fmt.Sprintf("labels[%.300q]", k), v)
		}
	}
}

// span reads a duration that only an agent that can be put to sleep may have.
func (p *problems) span(field string, d *durationpb.Duration, canWake bool) time.Duration {
	if d == nil {
		return 0
	}
	span := d.AsDuration()
	switch {
	case d.CheckValid() != nil || span < 0 || span > maxSpan:
		p.Add(field, "must be between 0 and %v", maxSpan)
	case span > 0 && !canWake:
		p.Add(field, "needs can_wake: an engine that was put to sleep could not be woken")
	}
	return span
}

func (p *problems) group(g *pb.Group) groupSpec {
	if g == nil {
		return groupSpec{}
	}
	p.name("group.name", g.GetName())
	if g.GetRoom() < 1 || g.GetRoom() > protocol.MaxRoom {
		p.Add("group.room", "must be between 1 and %d, is %d", uint64(protocol.MaxRoom), g.GetRoom())
	} else if g.GetCost() < 1 || g.GetCost() > g.GetRoom() {
		p.Add("group.cost", "must be between 1 and the room of %d, is %d", g.GetRoom(), g.GetCost())
	}
	return groupSpec{name: g.GetName(), room: int64(g.GetRoom()), cost: int64(g.GetCost())} //nolint:gosec // bounded above
}

// checkAddress parses the address of an agent's engine. 0.0.0.0 stands for the address that
// the agent connects from.
func checkAddress(s string, from peerAddr) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}, errors.New("must be ip:port, not a name")
	}
	if a.Addr().Unmap() == netip.IPv4Unspecified() {
		ip := from.ip
		if !ip.IsValid() && from.local {
			ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		if !ip.IsValid() {
			return netip.AddrPort{}, errors.New("0.0.0.0 stands for the address that the agent connects from, and that is not known: name the address")
		}
		a = netip.AddrPortFrom(ip, a.Port())
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), protocol.CheckAddress(a)
}

// allowed returns an error unless the agent may use ip as its engine's address: it may use
// the address that it connects from, any loopback address if it is on this machine, and
// those in the allowed networks.
func allowed(ip netip.Addr, from peerAddr, allow []netip.Prefix) error {
	if ip == from.ip || from.local && ip.IsLoopback() {
		return nil
	}
	for _, n := range allow {
		if n.Contains(ip) {
			return nil
		}
	}
	own := "a unix socket"
	if from.ip.IsValid() {
		own = from.ip.String()
	}
	return fmt.Errorf("%s is not where the agent connects from (%s): use 0.0.0.0 for that, or let the router allow the network (--agents-allow-cidr)", ip, own)
}

// hello is a checked Hello.
type hello struct {
	info        *AgentInfo
	slots       int64
	share       *uint32 // of the slots, for this router; nil: all
	offer       uint64  // the number of the share; 0: the agent does not read Usage
	state       pb.State
	canWake     bool
	idleTimeout time.Duration
	minUp       time.Duration
	servingFor  time.Duration
	group       groupSpec
}

// groupSpec is the group of a Hello; without a name there is none.
type groupSpec struct {
	name       string
	room, cost int64
}

// targets returns all pairs of the agent's models and kinds.
func (h hello) targets() []target.Target {
	targets := make([]target.Target, 0, len(h.info.Models)*len(h.info.Kinds))
	for _, m := range h.info.Models {
		for _, k := range h.info.Kinds {
			targets = append(targets, target.Target{Model: m, Kind: k})
		}
	}
	return targets
}

// kindSet is a set of kinds, one bit each.
type kindSet uint8

// kinds returns the agent's kinds as a set.
func (h hello) kinds() (kinds kindSet) {
	for _, k := range h.info.Kinds {
		kinds |= 1 << k
	}
	return kinds
}
