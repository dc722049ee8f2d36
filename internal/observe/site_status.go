// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"slices"
	"strings"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/site"
)

// SiteStatus makes the response of GET /v1/status?site=1.
type SiteStatus struct {
	Status

	Own    func() site.Router
	Others func() []site.Router
	// Alone returns why the other routers are not known; "" if they are.
	Alone func() string
	// SiteDemand and SiteWanted are the demand of all routers for a model.
	SiteDemand func(model string) int
	SiteWanted func(model string) bool
}

// Now returns the status at this moment.
func (s SiteStatus) Now() *admin.SiteStatus {
	own, others := s.Own(), s.Others()
	answer := &admin.SiteStatus{SiteID: s.SiteID, Alone: s.Alone(), Map: s.mapStatus(), Models: s.siteModels(others)}
	answer.Routers = append(answer.Routers, routerStatus(own))
	answer.Routers[0].This = true
	for _, r := range others {
		answer.Routers = append(answer.Routers, routerStatus(r))
	}
	return answer
}

// siteModels returns the models of all routers. An agent is usually connected to all of them,
// so the numbers of a model's agents are the highest that a router knows, not their sum.
func (s SiteStatus) siteModels(others []site.Router) []admin.ModelStatus {
	list := s.models()
	for _, r := range others {
		for _, m := range r.Models {
			i, found := slices.BinarySearchFunc(list, m.Model, func(a admin.ModelStatus, name string) int { return strings.Compare(a.Model, name) })
			if !found {
				list = slices.Insert(list, i, admin.ModelStatus{Model: m.Model})
			}
			at := &list[i]
			at.Serving, at.Asleep, at.Waking = max(at.Serving, m.Serving), max(at.Asleep, m.Asleep), at.Waking || m.Waking
		}
	}
	for i := range list {
		m := &list[i]
		m.Demand, m.Wanted = s.SiteDemand(m.Model), s.SiteWanted(m.Model)
		m.State = siteState(*m)
	}
	return list
}

// siteState returns the state of a model for the site.
func siteState(m admin.ModelStatus) string {
	switch {
	case m.Serving > 0:
		return "warm"
	case m.Waking || m.Wanted:
		return "waking"
	case m.Asleep > 0 || m.State == "":
		return "asleep"
	}
	return m.State
}

func routerStatus(r site.Router) admin.RouterStatus {
	state := "ready"
	switch {
	case r.Replaced:
		state = "replaced"
	case r.Draining:
		state = "draining"
	case r.NotReady != "":
		state = "not_ready"
	}
	return admin.RouterStatus{
		ID: r.ID, Host: r.Host, Admin: r.Admin, Version: r.Version, Started: r.Started, State: state, NotReady: r.NotReady,
		Held: r.Held, InFlight: r.InFlight, Generation: r.Generation, MapTag: r.MapTag,
	}
}
