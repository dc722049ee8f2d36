// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/target"
)

func TestTheAgentsThatAModelIsMissing(t *testing.T) {
	t.Parallel()
	const sleeps, wakes = pb.State_STATE_ASLEEP, pb.State_STATE_WAKING
	chat, embedding := []target.Kind{target.Chat}, []target.Kind{target.Embedding}
	both := []target.Kind{target.Chat, target.Embedding}
	agent := func(id string, kinds []target.Kind, s *state) *registration {
		a := &registration{state: *s}
		a.hello.info = &AgentInfo{ID: id, Kinds: kinds}
		return a
	}
	failed := func(s *state) {
		s.failures = failures{blocked: true, number: 1, reason: "out of memory", detail: "in detail"}
	}
	failedLater := func(s *state) { s.failures = failures{blocked: true, number: 2, reason: "crashed"} }
	fixed := func(s *state) { s.hello.canWake = false }
	for name, c := range map[string]struct {
		agents   []*registration
		wake     []string
		complete bool
		reason   string
	}{
		"no agents":               {nil, nil, true, ""},
		"one that is waking":      {[]*registration{agent("a", chat, stateOf(wakes))}, nil, true, ""},
		"the first by its id":     {[]*registration{agent("b", chat, stateOf(sleeps)), agent("a", chat, stateOf(sleeps))}, []string{"a"}, true, ""},
		"one for each kind":       {[]*registration{agent("a", chat, stateOf(sleeps)), agent("b", embedding, stateOf(sleeps))}, []string{"a", "b"}, true, ""},
		"one for both kinds":      {[]*registration{agent("b", chat, stateOf(sleeps)), agent("a", both, stateOf(sleeps))}, []string{"a"}, true, ""},
		"the kind that is not up": {[]*registration{agent("a", chat, stateOf(wakes)), agent("b", both, stateOf(sleeps))}, []string{"b"}, true, ""},
		"one failed":              {[]*registration{agent("a", chat, stateOf(sleeps, failed)), agent("b", chat, stateOf(sleeps))}, []string{"b"}, true, "out of memory"},
		"both failed":             {[]*registration{agent("a", chat, stateOf(sleeps, failed)), agent("b", chat, stateOf(sleeps, failedLater))}, nil, false, "crashed"},
		"it cannot be woken":      {[]*registration{agent("a", chat, stateOf(sleeps, fixed))}, nil, false, ""},
	} {
		m := &model{agents: map[*registration]struct{}{}}
		for _, a := range c.agents {
			m.agents[a] = struct{}{}
		}
		wake, complete := m.missing()
		var ids []string
		for _, a := range wake {
			ids = append(ids, a.hello.info.ID)
		}
		require.Equal(t, c.wake, ids, name)
		require.Equal(t, c.complete, complete, name)
		reason, _ := m.failure()
		require.Equal(t, c.reason, reason, name)
	}
}

func TestTwoHeartbeatsWithTooFewRequestsAreReported(t *testing.T) {
	t.Parallel()
	const interval = 5 * time.Second
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var h heartbeat
	for i, c := range []struct {
		after    time.Duration
		inFlight *uint32
		twice    bool
		most     int
	}{
		{0, new(uint32(3)), false, 0},
		{interval, new(uint32(1)), false, 0},
		{2 * interval, new(uint32(0)), true, 1},
		{2*interval + time.Second, new(uint32(2)), false, 0}, // sooner than a heartbeat
		{3 * interval, new(uint32(0)), true, 2},
		{4 * interval, nil, false, 0}, // it reports no number
		{5 * interval, new(uint32(0)), false, 0},
	} {
		h.at, h.status = start.Add(c.after), &pb.Status{InFlight: c.inFlight}
		f, twice := h.checkFewer(3, interval)
		require.Equal(t, c.twice, twice, "heartbeat %d", i)
		if twice {
			require.Equal(t, c.most, f.most, "heartbeat %d", i)
		}
	}
}
