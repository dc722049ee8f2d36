// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/sitemap"
)

// After a takeover the status includes what the requests of the process before need.
func TestTheStatusSaysThatAModelIsWantedByAnyProcess(t *testing.T) {
	t.Parallel()
	named := func(name, state string, serving int) decision.Model {
		return decision.Model{Model: name, Serving: serving, State: state}
	}
	s := Status{
		NotReady: func() string { return "" }, Warning: func() string { return "" }, InFlight: func() int { return 0 },
		Demand: func(string) int { return 2 }, Wanted: func(model string) bool { return model != "idle" },
		Models: func() []decision.Model {
			return []decision.Model{named("idle", "asleep", 0), named("m", "asleep", 0), named("up", "warm", 1)}
		},
		Agents: func() []agentreg.AgentStatus { return nil }, Maps: sitemap.NewStore("here", nil),
	}
	require.Equal(t, []admin.ModelStatus{
		{Model: "idle", State: "asleep", Demand: 2},
		{Model: "m", State: "waking", Demand: 2, Wanted: true},
		{Model: "up", State: "warm", Serving: 1, Demand: 2, Wanted: true},
	}, s.Now().Models)
}
