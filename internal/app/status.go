// SPDX-License-Identifier: Apache-2.0

package app

import (
	"time"

	"github.com/holdgate/holdgate/internal/admin"
)

// status is the router at this moment.
func (a *App) status() *admin.Status {
	reason := a.notReady()
	warning := ""
	if reason == "" {
		warning = a.warning()
	}
	s := &admin.Status{
		Ready: reason == "", NotReady: reason, Warning: warning, SiteID: a.c.SiteID, InFlight: a.InFlight(),
		Map: a.mapStatus(), Models: []admin.ModelStatus{}, Agents: []admin.AgentStatus{},
	}
	for _, one := range a.decider.Models() {
		waits := ""
		if one.Wait != nil {
			waits = one.Wait.Text(time.Now())
		}
		s.Models = append(s.Models, admin.ModelStatus{
			Model: one.Model, State: one.State, Serving: one.Serving, Asleep: one.Asleep, Waking: one.Waking,
			Demand: a.machine.Demand(one.Model), Wanted: one.Wanted, Waits: waits,
		})
	}
	for _, v := range a.registry.Agents() {
		kinds := []string{}
		for _, k := range v.Kinds {
			kinds = append(kinds, k.String())
		}
		s.Agents = append(s.Agents, admin.AgentStatus{
			ID: v.ID, State: v.State, Healthy: v.Healthy, Routing: v.InRouting, Models: v.Models, Kinds: kinds,
			Address: v.Address, Engine: v.Engine, Region: v.Region, Slots: v.Slots, InFlight: v.InFlight,
			Signals: admin.Signals{InFlight: v.Reported, Running: v.Running, Waiting: v.Waiting, KVUse: v.KVUse},
			CanWake: v.CanWake, Group: v.Group, Closing: v.Closing, Error: v.LastWakeError, NextTry: v.NextTry, Joined: v.Joined, LastSeen: v.LastSeen,
		})
	}
	return s
}

func (a *App) mapStatus() *admin.MapStatus {
	s := a.maps.State()
	if s.Map == nil {
		return nil
	}
	return &admin.MapStatus{
		Generation: s.Map.Generation(), Source: s.Source, ReceivedAt: s.ReceivedAt,
		AgeSeconds: int64(time.Since(s.ReceivedAt).Seconds()), ETag: s.Map.ETag(),
		Models: len(s.Map.Models()), Holdable: len(s.Map.Holdable()), Hints: len(s.Map.Hints()),
	}
}
