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
		Up: "Up", Down: "Down", HasRoom: "HasRoom", Slot: "Slot", Back: "Back", Done: "Done", Expire: "Expire",
		TimeOut: "TimeOut", Refuse: "Refuse", Leave: "Leave", Unplace: "Unplace", Revoke: "Revoke", Drain: "Drain", Fail: "Fail",
	}
)

// TestEveryStateMeetsEveryEvent is the state machine, written a second time from
// the rules: one row per state, one column per event.
func TestEveryStateMeetsEveryEvent(t *testing.T) {
	t.Parallel()
	const stay = "."
	rows := map[State][]string{
		//         Up          Down    HasRoom     Slot       Back    Done              Expire           TimeOut           Refuse            Leave                 Unplace          Revoke           Drain             Fail
		Held:     {"Released", stay, stay, stay, stay, stay, "Ended expired", stay, stay, "Ended disconnected", "Ended removed", "Ended removed", "Ended draining", "Ended wake_failed"},
		Released: {stay, "Held", "Admitted", stay, stay, stay, "Ended released", stay, "Ended released", "Ended disconnected", stay, "Ended removed", "Ended draining", stay},
		Admitted: {stay, "Held", stay, "Granted", stay, stay, stay, "Ended released", "Ended released", "Ended disconnected", stay, "Ended removed", "Ended draining", stay},
		Granted:  {stay, stay, stay, stay, "Held", "Ended released", stay, stay, stay, "Ended released", stay, stay, stay, stay},
		Ended:    {stay, stay, stay, stay, stay, stay, stay, stay, stay, stay, stay, stay, stay, stay},
	}
	require.Len(t, rows, len(stateNames))
	for s, row := range rows {
		require.Len(t, row, int(eventEnd))
		for e, want := range row {
			to, outcome := next(s, Event(e))
			got := stateNames[to]
			switch {
			case to == s:
				got = stay
				require.Equal(t, Pending, outcome)
			case to == Ended:
				got += " " + outcome.String()
			default:
				require.Equal(t, Pending, outcome)
			}
			require.Equal(t, want, got, "%s in %s", eventNames[e], stateNames[s])
		}
	}
}

// TestTheDocListsTheEdges keeps the list in the package comment equal to the table.
func TestTheDocListsTheEdges(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var listed []string
	for line := range strings.Lines(string(doc)) {
		if edge, ok := strings.CutPrefix(strings.TrimSpace(line), "//\t"); ok && strings.Contains(edge, " --") {
			listed = append(listed, edge)
		}
	}
	var edges []string
	for s := Held; s <= Ended; s++ {
		for e := range eventEnd {
			if to, outcome := next(s, e); to != s {
				edge := fmt.Sprintf("%s --%s--> %s", stateNames[s], eventNames[e], stateNames[to])
				if to == Ended {
					edge += fmt.Sprintf(" (%s)", outcome)
				}
				edges = append(edges, edge)
			}
		}
	}
	require.Equal(t, edges, listed)
}

func TestALifeHasOneOutcome(t *testing.T) {
	t.Parallel()
	events := rapid.SliceOf(rapid.Map(rapid.IntRange(0, int(eventEnd)-1), func(i int) Event { return Event(i) }))
	rapid.Check(t, func(t *rapid.T) {
		state, ended := Held, 0
		for _, e := range events.Draw(t, "events") {
			to, outcome := next(state, e)
			if state == Ended {
				require.Equal(t, Ended, to, "the end is the end")
			}
			if outcome != Pending {
				require.Equal(t, Ended, to, "an outcome only at the end")
				ended++
			}
			require.Equal(t, to == Ended, ended == 1)
			state = to
		}
	})
}

// TestEveryStateCanEnd is for a client that leaves: no state keeps it.
func TestEveryStateCanEnd(t *testing.T) {
	t.Parallel()
	for s := Held; s <= Ended; s++ {
		to, _ := next(s, Leave)
		require.Equal(t, Ended, to, stateNames[s])
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
