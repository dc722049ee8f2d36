// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/site"
	"github.com/holdgate/holdgate/sitemap"
)

func TestTheStatusOfASiteJoinsWhatItsRoutersSay(t *testing.T) {
	t.Parallel()
	model := func(name, state string, serving, asleep int) decision.Model {
		return decision.Model{Model: name, Serving: serving, Asleep: asleep, State: state}
	}
	wanted := map[string]bool{"cold": true}
	s := SiteStatus{
		SiteID: "here", Maps: sitemap.NewStore("here", nil), Demand: func(string) int { return 1 },
		Wanted:      func(string) bool { return false },
		WakingSince: func(string) time.Time { return time.Time{} }, WakeTime: func(string) time.Duration { return 0 },
		Models: func() []decision.Model {
			return []decision.Model{
				model("asleep-here", "asleep", 0, 1), model("cold", "asleep", 0, 0), model("far", "elsewhere", 0, 0),
				model("there", "elsewhere", 0, 0), model("warm", "warm", 2, 0),
			}
		},
		Own: func() site.Router { return site.Router{ID: "1", NotReady: "no map"} },
		Others: func() []site.Router {
			return []site.Router{
				{ID: "2", Draining: true, NotReady: "shutting down", Models: []site.RouterModel{
					{Model: "asleep-here", Waking: true}, {Model: "new", Asleep: 1}, {Model: "there", Asleep: 2}, {Model: "warm", Serving: 1},
				}},
				{ID: "3", Replaced: true, Models: []site.RouterModel{{Model: "new", Serving: 1}}},
			}
		},
		Alone:      func() string { return "" },
		SiteDemand: func(model string) int { return len(model) },
		SiteWanted: func(model string) bool { return wanted[model] },
	}
	now := s.Now()
	require.Equal(t, []admin.ModelStatus{
		{Model: "asleep-here", State: "waking", Asleep: 1, Waking: true, Demand: 11},
		{Model: "cold", State: "waking", Demand: 4, Wanted: true},
		{Model: "far", State: "elsewhere", Demand: 3},
		{Model: "new", State: "warm", Serving: 1, Asleep: 1, Demand: 3},
		{Model: "there", State: "asleep", Asleep: 2, Demand: 5},
		{Model: "warm", State: "warm", Serving: 2, Demand: 4},
	}, now.Models)
	require.Equal(t, []admin.RouterStatus{
		{ID: "1", This: true, State: "not_ready", NotReady: "no map"},
		{ID: "2", State: "draining", NotReady: "shutting down"},
		{ID: "3", State: "replaced"},
	}, now.Routers)
}
