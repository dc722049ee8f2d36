// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
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
		WakingSince: func(string) time.Time { return time.Time{} }, WakeTime: func(string) time.Duration { return 0 },
		Waiting: func() []holdstate.Group { return nil }, HoldTimes: func() []admin.HoldTime { return nil },
		Gateways: func() []extproc.Gateway { return []extproc.Gateway{{Envoy: "10.0.0.1", Requests: 2, Log: true}} },
	}
	require.Equal(t, []admin.GatewayStatus{{Envoy: "10.0.0.1", Requests: 2, Log: true}}, s.Now().Gateways)
	require.Equal(t, []admin.ModelStatus{
		{Model: "idle", State: "asleep", Demand: 2},
		{Model: "m", State: "waking", Demand: 2, Wanted: true},
		{Model: "up", State: "warm", Serving: 1, Demand: 2, Wanted: true},
	}, s.Now().Models)
}

func TestHoldTimesAreThoseThatOccurred(t *testing.T) {
	t.Parallel()
	m := newMetrics(Options{})
	require.Empty(t, m.HoldTimes())
	for _, held := range []time.Duration{2 * time.Second, 3 * time.Second, 15 * time.Second} {
		m.HoldEnded(holdstate.OutcomeReleased, held)
	}
	require.Equal(t, []admin.HoldTime{{UpTo: 2.5, Requests: 1}, {UpTo: 5, Requests: 1}, {UpTo: 10}, {UpTo: 20, Requests: 1}}, m.HoldTimes())
	m.HoldEnded(holdstate.OutcomeExpired, 2*time.Hour)
	times := m.HoldTimes()
	require.Equal(t, admin.HoldTime{Requests: 1}, times[len(times)-1])
}
