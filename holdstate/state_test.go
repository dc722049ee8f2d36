// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	stateNames = []string{Held: "Held", Released: "Released", Admitted: "Admitted", Granted: "Granted", Ended: "Ended"}
	eventNames = []string{
		Up: "Up", Down: "Down", Reserved: "Reserved", Slot: "Slot", Back: "Back", Done: "Done", Expire: "Expire",
		TimeOut: "TimeOut", Refuse: "Refuse", Leave: "Leave", Unplace: "Unplace", Revoke: "Revoke", Drain: "Drain", Fail: "Fail",
	}
)

// describe says what a step does. A step that does nothing is a dot.
func describe(s *step) string {
	if s == nil {
		return "."
	}
	text := stateNames[s.to]
	if s.to == Ended {
		text += " " + s.outcome.String()
	}
	if s.err != nil {
		text += ": " + s.err.Error()
	}
	for _, effect := range []struct {
		has  bool
		name string
	}{{s.further, "further"}, {s.frees, "frees"}, {s.missed, "missed"}} {
		if effect.has {
			text += ", " + effect.name
		}
	}
	return text
}

// TestEveryStateMeetsEveryEvent is the state machine, written a second time from
// the rules: every event in every state, for the waiters of Hold and for those of Queue.
func TestEveryStateMeetsEveryEvent(t *testing.T) {
	t.Parallel()
	const stay = "."
	type cell struct{ ofHold, ofQueue string }
	both := func(s string) cell { return cell{s, s} }
	never := both(stay)
	onlyHold := func(s string) cell { return cell{s, stay} } // a waiter of Queue is not held
	want := map[State]map[Event]cell{
		Held: {
			Up: onlyHold("Released"), Down: never, Reserved: never, Slot: never, Back: never, Done: never,
			Expire: onlyHold("Ended expired"), TimeOut: never, Refuse: never, Leave: onlyHold("Ended disconnected"),
			Unplace: onlyHold("Ended removed"), Revoke: onlyHold("Ended removed"), Drain: onlyHold("Ended draining"),
			Fail: onlyHold("Ended wake_failed"),
		},
		Released: {
			Up: never, Down: {"Held, missed", "Ended pending, frees"}, Reserved: both("Admitted"), Slot: never, Back: never, Done: never,
			Expire: both("Ended released: the admission gate is full, frees"), TimeOut: never, Refuse: both("Ended released"),
			Leave: both("Ended disconnected, frees"), Unplace: never, Revoke: both("Ended removed, frees"),
			Drain: both("Ended draining, frees"), Fail: never,
		},
		Admitted: {
			Up: never, Down: {"Held, frees, missed", "Ended pending, frees"}, Reserved: never, Slot: both("Granted"), Back: never, Done: never,
			Expire: never, TimeOut: both("Ended released: no slot became free in time, further, frees"), Refuse: both("Ended released, frees"),
			Leave: both("Ended disconnected, frees"), Unplace: never, Revoke: both("Ended removed, frees"),
			Drain: both("Ended draining, frees"), Fail: never,
		},
		Granted: {
			Up: never, Down: never, Reserved: never, Slot: never, Back: {"Held, missed", "Ended pending"}, Done: both("Ended released"),
			Expire: never, TimeOut: never, Refuse: never, Leave: both("Ended released"), Unplace: never, Revoke: never, Drain: never, Fail: never,
		},
		Ended: {
			Up: never, Down: never, Reserved: never, Slot: never, Back: never, Done: never, Expire: never,
			TimeOut: never, Refuse: never, Leave: never, Unplace: never, Revoke: never, Drain: never, Fail: never,
		},
	}
	require.Len(t, want, int(stateEnd))
	for s, row := range want {
		require.Len(t, row, int(eventEnd), stateNames[s])
		for e, cell := range row {
			require.Equal(t, cell.ofHold, describe(steps[ofHold][s][e]), "%s in %s", eventNames[e], stateNames[s])
			require.Equal(t, cell.ofQueue, describe(steps[ofQueue][s][e]), "%s in %s, of Queue", eventNames[e], stateNames[s])
		}
	}
}

// TestTheTableHasOneRowForACell, and an outcome only for a waiter that ends.
func TestTheTableHasOneRowForACell(t *testing.T) {
	t.Parallel()
	type cell struct {
		state State
		event Event
		kind  kind
	}
	seen := map[cell]bool{}
	for _, r := range table {
		for k := range kindEnd {
			if r.kind != either && r.kind != k {
				continue
			}
			c := cell{r.state, r.event, k}
			require.False(t, seen[c], "%s in %s", eventNames[r.event], stateNames[r.state])
			seen[c] = true
		}
		require.NotEqual(t, r.state, r.to)
		require.True(t, r.to == Ended || r.outcome == Pending && r.err == nil)
	}
}

// TestTheDocListsTheTable keeps the list in the package comment equal to the table.
func TestTheDocListsTheTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var listed []string
	for line := range strings.Lines(string(doc)) {
		if edge, ok := strings.CutPrefix(strings.TrimSpace(line), "//\t"); ok && strings.Contains(edge, " --") {
			listed = append(listed, edge)
		}
	}
	edges := make([]string, 0, len(table))
	for _, r := range table {
		edge := fmt.Sprintf("%s --%s--> %s", stateNames[r.state], eventNames[r.event], stateNames[r.to])
		switch {
		case r.to == Ended && r.outcome == Pending:
			edge += " (of Queue: to decide again)"
		case r.to == Ended:
			edge += fmt.Sprintf(" (%s)", r.outcome)
		case r.kind == ofHold && r.state != Held:
			edge += " (of Hold)"
		}
		edges = append(edges, edge)
	}
	require.Equal(t, edges, listed, "write:\n//\t%s", strings.Join(edges, "\n//\t"))
}

func TestALifeHasOneOutcome(t *testing.T) {
	t.Parallel()
	events := rapid.SliceOf(rapid.Map(rapid.IntRange(0, int(eventEnd)-1), func(i int) Event { return Event(i) }))
	rapid.Check(t, func(t *rapid.T) {
		state, ended := Held, 0
		for _, e := range events.Draw(t, "events") {
			s := steps[ofHold][state][e]
			if s == nil {
				continue
			}
			require.NotEqual(t, Ended, state, "the end is the end")
			if s.outcome != Pending {
				require.Equal(t, Ended, s.to, "an outcome only at the end")
				ended++
			}
			require.Equal(t, s.to == Ended, ended == 1)
			state = s.to
		}
	})
}

// TestEveryStateCanEnd is for a client that leaves: no state keeps it.
func TestEveryStateCanEnd(t *testing.T) {
	t.Parallel()
	for s := range Ended {
		require.Equal(t, Ended, steps[ofHold][s][Leave].to, stateNames[s])
		if s != Held {
			require.Equal(t, Ended, steps[ofQueue][s][Leave].to, stateNames[s])
		}
	}
}

func TestOutcomesAreTheLabels(t *testing.T) {
	t.Parallel()
	labels := make([]string, 0, len(outcomeNames))
	for _, o := range Outcomes() {
		labels = append(labels, o.String())
	}
	require.Equal(t, []string{"released", "expired", "full", "disconnected", "removed", "draining", "wake_failed"}, labels)
	require.Equal(t, "pending", Pending.String())
}
