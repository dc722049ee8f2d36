// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/share"
)

// RoomWait says what a model waits for whose agent needs room in its group.
type RoomWait struct {
	Group string
	// For is the agents that must give up their room first, Behind the models that
	// get room before this one.
	For    []string
	Behind []string
	// From is when the first of the agents may be closed that may not be yet; zero: none
	// has to be waited for, or it is not known how long.
	From time.Time
}

func newRoomWait(w share.Wait) *RoomWait {
	v := &RoomWait{Group: w.Agent.Group.Name, From: w.From}
	for _, a := range w.For {
		v.For = append(v.For, a.ID)
	}
	slices.Sort(v.For)
	v.For = slices.Compact(v.For) // one that is gone and one that came back have one id
	for _, m := range w.Behind {
		v.Behind = append(v.Behind, m.Name)
	}
	return v
}

// Text says it in words, at the time of now.
func (v *RoomWait) Text(now time.Time) string {
	text := "waits for room in group " + v.Group
	if len(v.Behind) > 0 {
		text += ", behind " + strings.Join(v.Behind, ", ")
	}
	if len(v.For) > 0 {
		text += ", which " + strings.Join(v.For, ", ") + " must give up first"
		if left := v.From.Sub(now); left > 0 {
			text += fmt.Sprintf(", in %v at the earliest", left.Round(time.Second))
		}
	}
	return text
}
