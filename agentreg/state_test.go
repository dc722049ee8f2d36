// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// stateOf is an agent that can be woken, in a state that it has reported.
func stateOf(reported pb.State, edits ...func(*state)) *state {
	s := &state{reported: reported, healthy: reported == pb.State_STATE_SERVING, heard: true}
	s.hello.canWake = true
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func TestStateOfAnAgent(t *testing.T) {
	t.Parallel()
	const sleeps, wakes, serves = pb.State_STATE_ASLEEP, pb.State_STATE_WAKING, pb.State_STATE_SERVING
	wakeSent := func(s *state) { s.attempt.open = true }
	toldToSleep := func(s *state) { s.toldToSleep = true }
	type is struct{ asleep, waking, routable, occupies, vacates bool }
	for name, c := range map[string]struct {
		state *state
		want  is
	}{
		"asleep":                         {stateOf(sleeps), is{asleep: true}},
		"asleep, not heard of yet":       {stateOf(sleeps, func(s *state) { s.heard = false }), is{asleep: true, occupies: true, vacates: true}},
		"told to wake":                   {stateOf(sleeps, wakeSent), is{waking: true, occupies: true}},
		"waking":                         {stateOf(wakes), is{waking: true, occupies: true}},
		"serving":                        {stateOf(serves), is{routable: true, occupies: true}},
		"serving, told to sleep":         {stateOf(serves, toldToSleep), is{asleep: true, occupies: true, vacates: true}},
		"asleep, Sleep unacknowledged":   {stateOf(sleeps, toldToSleep, func(s *state) { s.messages.command = 1 }), is{asleep: true, occupies: true, vacates: true}},
		"serving, told to wake again":    {stateOf(serves, wakeSent), is{waking: true, occupies: true}},
		"serving, unhealthy":             {stateOf(serves, func(s *state) { s.healthy = false }), is{occupies: true}},
		"serving, refused a request":     {stateOf(serves, func(s *state) { s.probe.failed = true }), is{occupies: true}},
		"serving, makes room":            {stateOf(serves, func(s *state) { s.closing = true }), is{occupies: true}},
		"serving, said Bye":              {stateOf(serves, func(s *state) { s.leaving = true }), is{occupies: true, vacates: true}},
		"serving, gone":                  {stateOf(serves, func(s *state) { s.left = true }), is{occupies: true, vacates: true}},
		"cannot be woken, not looked at": {stateOf(sleeps, func(s *state) { s.hello.canWake = false }), is{asleep: true, occupies: true}},
	} {
		s := c.state
		require.Equal(t, c.want, is{s.asleep(), s.waking(), s.routable(), s.occupies(), s.vacates()}, name)
	}
}

func TestWhenAnAgentMayBeClosedToMakeRoom(t *testing.T) {
	t.Parallel()
	const sleeps, wakes, serves = pb.State_STATE_ASLEEP, pb.State_STATE_WAKING, pb.State_STATE_SERVING
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	after := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	attempted := func(s *state) { s.attempt.began, s.attempt.demandAt = start, after(3) }
	up := func(s *state) { s.upAt = start }
	for name, c := range map[string]struct {
		state          *state
		demand, wanted bool
		want           time.Time
	}{
		"asleep":                          {stateOf(sleeps), false, false, time.Time{}},
		"cannot sleep":                    {stateOf(serves, up, func(s *state) { s.hello.canWake = false }), false, false, time.Time{}},
		"said Bye":                        {stateOf(serves, up, func(s *state) { s.leaving = true }), false, false, time.Time{}},
		"waking for requests":             {stateOf(wakes, attempted), true, true, time.Time{}},
		"waking, wanted by no request":    {stateOf(wakes, attempted), false, true, after(6)},
		"waking, not wanted":              {stateOf(wakes, attempted), false, false, start},
		"serving":                         {stateOf(serves, up), true, true, after(1)},
		"serving, with a minimum up time": {stateOf(serves, up, func(s *state) { s.hello.minUp = 30 * time.Second }), true, true, after(30)},
	} {
		require.Equal(t, c.want, c.state.closeFrom(c.demand, c.wanted), name)
	}
}

func TestAStatusCountsFromTheLastCommandOn(t *testing.T) {
	t.Parallel()
	var m messages
	_, counts := m.acknowledge(0)
	require.True(t, counts, "nothing was sent")
	m.nextCommand(time.Time{})
	m.next()
	require.True(t, m.unacknowledged())
	_, counts = m.acknowledge(0)
	require.False(t, counts, "it was sent before the command arrived")
	handled, counts := m.acknowledge(1)
	require.True(t, counts)
	require.EqualValues(t, 1, handled)
	require.False(t, m.unacknowledged())
	handled, _ = m.acknowledge(99)
	require.EqualValues(t, 2, handled, "no more was sent")
}

func TestCooldownDoublesInAGroup(t *testing.T) {
	t.Parallel()
	for inARow, want := range map[int]time.Duration{1: wakeCooldown, 2: 2 * wakeCooldown, 3: 4 * wakeCooldown, 99: maxGroupCooldown} {
		f := failures{inARow: inARow}
		require.Equal(t, want, f.cooldown(true))
		require.Equal(t, wakeCooldown, f.cooldown(false))
	}
}
