// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/share"
)

// RoomWait describes what a model waits for while its agent needs room in its group.
type RoomWait struct {
	Group string
	// For are the ids of the agents that must free their room first, Behind the models
	// that get room before this one.
	For    []string
	Behind []string
	// From is the earliest time at which one of the agents that may not be closed yet may
	// be closed; zero if there is none or it is not known.
	From time.Time
}

func newRoomWait(w share.Wait) *RoomWait {
	v := &RoomWait{Group: w.Agent.Group.Name, From: w.From}
	for _, a := range w.For {
		v.For = append(v.For, a.ID)
	}
	slices.Sort(v.For)
	v.For = slices.Compact(v.For) // an agent that left and the one that replaced it have one id
	for _, m := range w.Behind {
		v.Behind = append(v.Behind, m.Name)
	}
	return v
}

// Text describes the wait in a sentence, at the time now.
func (v *RoomWait) Text(now time.Time) string {
	text := "waits for room in group " + v.Group
	if len(v.Behind) > 0 {
		text += ", behind " + strings.Join(v.Behind, ", ")
	}
	if len(v.For) > 0 {
		text += ", which " + strings.Join(v.For, ", ") + " must free first"
		if left := v.From.Sub(now); left > 0 {
			text += fmt.Sprintf(", in %v at the earliest", left.Round(time.Second))
		}
	}
	return text
}
