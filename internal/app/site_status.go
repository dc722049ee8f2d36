// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"

	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/site"
)

// siteStatus returns the source of GET /v1/status?site=1. A router that is alone answers for
// itself.
func (a *App) siteStatus() observe.SiteStatus {
	s := observe.SiteStatus{
		Status: a.newStatus(), Own: a.describe,
		Others:     func() []site.Router { return nil },
		Alone:      func() string { return "this router shares no state: it has no --shared" },
		SiteDemand: a.machine.Demand, SiteWanted: a.machine.Wanted,
	}
	if a.siteRouters == nil {
		return s
	}
	s.Own, s.Others = a.siteRouters.Own, a.siteRouters.Others
	s.SiteDemand, s.SiteWanted = a.demand.Demand, a.demand.Wanted
	s.Alone = func() string {
		if a.shared.Up() {
			return ""
		}
		return "the server of --shared does not answer"
	}
	return s
}

// describe returns what this router says of itself to the others.
func (a *App) describe() site.Router {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	r := site.Router{
		SiteID: a.c.SiteID, Host: host, Version: a.c.Version, Started: a.started, NotReady: a.notReady(), Draining: a.draining.Load(),
		Replaced: a.replaced.Load(),
		Held:     a.machine.Held(), InFlight: a.InFlight(),
	}
	if a.listeners.admin != nil {
		r.Admin = a.AdminAddr()
	}
	if m := a.maps.Current(); m != nil {
		r.Generation, r.MapTag = m.Generation(), m.Tag()
	}
	for _, m := range a.registry.Models() {
		r.Models = append(r.Models, site.RouterModel{Model: m.Model, Serving: m.Serving, Asleep: m.Asleep, Waking: m.Waking})
	}
	return r
}

// siteView is what explain says of the other routers.
type siteView struct{ *App }

// Up reports whether the other routers are known.
func (v siteView) Up() bool { return v.shared.Up() }

// Demand returns the demand of all routers for a model.
func (v siteView) Demand(model string) int { return v.demand.Demand(model) }

// siteView returns the view of the site, nil if this router is alone.
func (a *App) siteView() decision.Site {
	if a.shared == nil {
		return nil
	}
	return siteView{a}
}
