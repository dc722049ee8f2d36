// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/sitemap"
)

// Status makes the response of GET /v1/status.
type Status struct {
	SiteID   string
	NotReady func() string // why the router is not ready; "" if it is
	Warning  func() string // what a router that is ready lacks; "" if nothing
	InFlight func() int
	Demand   func(model string) int
	Wanted   func(model string) bool
	Models   func() []decision.Model
	Agents   func() []agentreg.AgentStatus
	Maps     *sitemap.Store
	// WakingSince is when a model was first seen in state waking, zero in other states, and
	// WakeTime how long a wake of it takes, 0 if that is not known.
	WakingSince func(model string) time.Time
	WakeTime    func(model string) time.Duration
	Waiting     func() []holdstate.Group
	HoldTimes   func() []admin.HoldTime
	Gateways    func() []extproc.Gateway
}

// The longest lists of a status.
const (
	maxWaiting = 200
	maxHints   = 50 // of each site
)

// Now returns the status at this moment.
func (s Status) Now() *admin.Status {
	reason, warning := s.NotReady(), ""
	if reason == "" {
		warning = s.Warning()
	}
	status := &admin.Status{
		Ready: reason == "", NotReady: reason, Warning: warning, SiteID: s.SiteID, InFlight: s.InFlight(),
		Map: s.mapStatus(), Models: s.models(), Agents: s.agents(), HoldTimes: s.HoldTimes(), Siblings: s.siblings(), Gateways: s.gateways(),
	}
	status.Waiting, status.WaitingMore = s.waiting()
	return status
}

func (s Status) gateways() (list []admin.GatewayStatus) {
	for _, g := range s.Gateways() {
		list = append(list, admin.GatewayStatus{Envoy: g.Envoy, Requests: g.Requests, LastSeen: g.LastSeen, Log: g.Log})
	}
	return list
}

func (s Status) waiting() (list []admin.WaitStatus, more int) {
	for _, g := range s.Waiting() {
		if len(list) == maxWaiting {
			more += g.Requests
			continue
		}
		list = append(list, admin.WaitStatus{
			Model: g.Target.Model, Kind: g.Target.Kind.String(), KeyID: g.KeyID, Tenant: g.Tenant, Requests: g.Requests, Held: g.Held, Since: g.Since,
		})
	}
	return list, more
}

func (s Status) siblings() (list []admin.SiblingStatus) {
	m := s.Maps.Current()
	if m == nil {
		return nil
	}
	for _, site := range m.Siblings(s.SiteID, time.Now()) {
		status := admin.SiblingStatus{Site: site.ID, URL: site.URL, Hints: []admin.HintStatus{}}
		for _, h := range site.Hints {
			if len(status.Hints) == maxHints {
				status.HintsMore = len(site.Hints) - maxHints
				break
			}
			status.Hints = append(status.Hints, admin.HintStatus{Model: h.Model, Kind: h.Kind.String(), State: h.State, ObservedAt: h.ObservedAt})
		}
		list = append(list, status)
	}
	return list
}

func (s Status) models() []admin.ModelStatus {
	list := []admin.ModelStatus{}
	for _, m := range s.Models() {
		waits := ""
		if m.Wait != nil {
			waits = m.Wait.Text(time.Now())
		}
		wanted := s.Wanted(m.Model)
		if wanted && m.State == "asleep" {
			m.State = "waking" // for a process that this one replaces
		}
		list = append(list, admin.ModelStatus{
			Model: m.Model, State: m.State, Serving: m.Serving, Asleep: m.Asleep, Waking: m.Waking,
			Demand: s.Demand(m.Model), Wanted: wanted, Waits: waits,
			WakingSince: s.WakingSince(m.Model), WakeSeconds: s.WakeTime(m.Model).Seconds(), Destination: string(m.Destination),
		})
	}
	return list
}

func (s Status) agents() []admin.AgentStatus {
	list := []admin.AgentStatus{}
	for _, a := range s.Agents() {
		kinds := []string{}
		for _, k := range a.Kinds {
			kinds = append(kinds, k.String())
		}
		list = append(list, admin.AgentStatus{
			ID: a.ID, State: a.State, Healthy: a.Healthy, Routing: a.InRouting, Models: a.Models, Kinds: kinds,
			Address: a.Address, Engine: a.Engine, Region: a.Region, Slots: a.Slots, InFlight: a.InFlight,
			Signals: admin.Signals{InFlight: a.Reported, Running: a.Running, Waiting: a.Waiting, KVUse: a.KVUse},
			CanWake: a.CanWake, Group: a.Group, Closing: a.Closing, Error: a.LastWakeError, NextTry: a.NextTry, Joined: a.Joined, LastSeen: a.LastSeen,
		})
	}
	return list
}

func (s Status) mapStatus() *admin.MapStatus {
	m := s.Maps.State()
	if m.Map == nil {
		return nil
	}
	return &admin.MapStatus{
		Generation: m.Map.Generation(), Source: m.Source, ReceivedAt: m.ReceivedAt,
		AgeSeconds: int64(time.Since(m.ReceivedAt).Seconds()), ETag: m.Map.ETag(),
		Models: len(m.Map.Models()), Holdable: len(m.Map.Holdable()), Hints: len(m.Map.Hints()),
	}
}
