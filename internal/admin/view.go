// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdgate/holdgate/internal/admin/page"
	"github.com/holdgate/holdgate/internal/events"
)

// maxRows is how many models and agents the page shows.
const maxRows = 200

// newView returns what the page shows of a status and the last decisions, the newest first.
func newView(s *Status, decisions []events.Event, now time.Time) *page.View {
	v := &page.View{
		Now: now, SiteID: s.SiteID, Health: "ok", HealthText: "Ready", MapText: mapText(s.Map), InFlight: s.InFlight, WaitingMore: s.WaitingMore,
	}
	switch {
	case !s.Ready:
		v.Health, v.HealthText = "bad", "Not ready: "+s.NotReady
	case s.Warning != "":
		v.Health, v.HealthText = "warning", "Ready, but "+s.Warning
	}
	for i := range s.Models {
		v.Models = append(v.Models, viewModel(&s.Models[i], now))
	}
	slices.SortStableFunc(v.Models, func(a, b page.Model) int { return cmp.Compare(modelOrder[a.Class], modelOrder[b.Class]) })
	v.Models, v.ModelsMore = first(v.Models)
	for i := range v.Models {
		v.Models[i].Index = i
	}
	for _, w := range s.Waiting {
		v.Waiting = append(v.Waiting, page.Waiting{
			Who: cmp.Or(w.KeyID, w.Tenant), Model: w.Model, Kind: w.Kind, Requests: w.Requests, Age: page.Span(now.Sub(w.Since)),
		})
	}
	v.Holds = viewHolds(s.HoldTimes)
	for i := range s.Agents {
		v.Agents = append(v.Agents, viewAgent(&s.Agents[i]))
	}
	v.Agents, v.AgentsMore = first(v.Agents)
	for _, g := range s.Gateways {
		v.Gateways = append(v.Gateways, page.Gateway{Name: g.Envoy, Requests: g.Requests, Ago: page.Span(now.Sub(g.LastSeen)), Log: g.Log})
	}
	for _, site := range s.Siblings {
		v.Sites = append(v.Sites, viewSite(site, now))
	}
	for i := range decisions {
		v.Decisions = append(v.Decisions, viewDecision(&decisions[i]))
	}
	return v
}

// first returns the first rows of a list, and how many more it has.
func first[T any](list []T) (rows []T, more int) {
	if len(list) <= maxRows {
		return list, 0
	}
	return list[:maxRows], len(list) - maxRows
}

func mapText(m *MapStatus) string {
	if m == nil {
		return "No sibling map"
	}
	age := "less than a minute"
	if d := time.Duration(m.AgeSeconds) * time.Second; d >= time.Minute {
		age = page.Span(d.Truncate(time.Minute))
	}
	return fmt.Sprintf("Map of generation %d, %s %s ago", m.Generation, m.Source, age)
}

// modelOrder is the order of the models on the page, by their classes.
var modelOrder = map[string]int{"starting": 0, "queued": 1, "serving": 2, "asleep": 3, "elsewhere": 4}

func viewModel(m *ModelStatus, now time.Time) page.Model {
	v := page.Model{Name: m.Model, State: "asleep", Class: "asleep", Serving: m.Serving, Demand: m.Demand, Waits: m.Waits}
	switch {
	case m.State == "warm":
		v.State, v.Class = "serving", "serving"
	case m.State == "waking" && m.Waits != "":
		v.State, v.Class = "queued for the group", "queued"
	case m.State == "waking":
		v.State, v.Class = "starting", "starting"
		progress(&v, m, now)
	case m.State == "elsewhere":
		v.State, v.Class = "at another site", "elsewhere"
	default:
		v.CanWake = true
	}
	return v
}

// progress adds how long the wake has taken, and how long it usually takes.
func progress(v *page.Model, m *ModelStatus, now time.Time) {
	v.Progress = true
	if m.WakingSince.IsZero() {
		return
	}
	elapsed, usual := now.Sub(m.WakingSince), time.Duration(m.WakeSeconds*float64(time.Second))
	switch {
	case usual <= 0:
		v.ProgressText = "for " + page.Span(elapsed) + "; how long it takes is not known yet"
		return
	case elapsed > usual:
		v.ProgressText = fmt.Sprintf("%s, longer than usual (%s)", page.Span(elapsed), page.Span(usual))
	default:
		v.ProgressText = fmt.Sprintf("%s of about %s", page.Span(elapsed), page.Span(usual))
	}
	v.Of = max(1, int(usual.Seconds()))
	v.Elapsed = min(v.Of, int(elapsed.Seconds()))
}

func viewHolds(times []HoldTime) (list []page.Hold) {
	var all uint64
	for _, t := range times {
		all += t.Requests
	}
	longest := 0.0
	for _, t := range times {
		h := page.Hold{Range: "up to " + seconds(t.UpTo), Requests: t.Requests, Of: all}
		if t.UpTo == 0 {
			h.Range = "over " + seconds(longest)
		}
		longest = t.UpTo
		list = append(list, h)
	}
	return list
}

// seconds returns a limit of a histogram in words.
func seconds(s float64) string {
	if s < 60 {
		return strconv.FormatFloat(s, 'f', -1, 64) + " s"
	}
	return strconv.FormatFloat(s/60, 'f', -1, 64) + " min"
}

func viewAgent(a *AgentStatus) page.Agent {
	v := page.Agent{ID: a.ID, State: a.State, Class: a.State, Slots: a.Slots, InFlight: a.InFlight, Models: a.Models}
	if a.State == "waking" {
		v.State, v.Class = "starting", "starting"
	}
	switch {
	case a.Error != "":
		v.Note = "The last wake failed: " + a.Error
	case !a.Healthy && a.State == "serving":
		v.Note = "Not healthy"
	case a.Closing:
		v.Note = "Makes room in group " + a.Group
	}
	return v
}

func viewSite(s SiblingStatus, now time.Time) page.Site {
	v := page.Site{ID: s.Site, URL: s.URL, More: s.HintsMore}
	for _, h := range s.Hints {
		v.Hints = append(v.Hints, page.Hint{Model: h.Model, Kind: h.Kind, State: h.State, Age: page.Span(now.Sub(h.ObservedAt))})
	}
	return v
}

func viewDecision(e *events.Event) page.Decision {
	v := page.Decision{Time: e.Time, Type: string(e.Type), Model: e.Model, Kind: e.Kind, Reason: e.Reason}
	switch e.Type { //nolint:exhaustive // the others are no decisions
	case events.Held:
		v.Reason = "no replica serves it"
	case events.Redirected:
		v.Reason = "to site " + e.Site
	case events.Refused:
		v.Reason = strconv.Itoa(e.Status) + " " + e.Reason
	}
	return v
}
