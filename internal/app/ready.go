// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"time"
)

// noMap is the message of a router that has a site id and no map.
const noMap = "no sibling map was pushed or restored yet: push one with holdgate map push -f FILE"

// notReady returns why no traffic should be sent here, "" if the router is ready. A router
// without a map becomes ready after --map-wait: it serves what it can without one, and a map
// that is pushed through a load balancer reaches only routers that are ready.
func (a *App) notReady() string {
	switch {
	case a.draining.Load():
		return "the router is shutting down"
	case a.lacksMap() && time.Now().Before(a.mapWait):
		return noMap
	}
	return ""
}

// warning returns what a router that is ready lacks, "" if nothing.
func (a *App) warning() string {
	if a.lacksMap() {
		return noMap
	}
	return ""
}

func (a *App) lacksMap() bool { return a.c.SiteID != "" && a.maps.Current() == nil }

// awaitMap logs a warning if there is no map after --map-wait.
func (a *App) awaitMap(ctx context.Context) {
	timer := time.NewTimer(time.Until(a.mapWait))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		if a.lacksMap() {
			a.log.Warn().Msg("no sibling map came within --map-wait: the router is ready without one and serves only models that are up or of backends; push one with holdgate map push -f FILE")
		}
	}
}
