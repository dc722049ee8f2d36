// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"fmt"
	"strings"

	"github.com/holdgate/holdgate/internal/target"
)

// similar is the model, or the alias, whose name is most like the one that was asked
// for and of which nobody knows; empty when none is like it.
func (x *explaining) similar() string {
	if x.knows(x.t.Model) {
		return ""
	}
	names := x.o.Policies().Aliases()
	for _, m := range x.Models() {
		names = append(names, m.Model)
	}
	best, least := "", len(x.asked)/3+1 // a third of the name may differ
	for _, name := range sortedNames(names) {
		if d := distance(strings.ToLower(name), strings.ToLower(x.asked)); d < least {
			best, least = name, d
		}
	}
	return best
}

// otherKind names a kind for which the model is here, when it is not here for the one
// that was asked for.
func (x *explaining) otherKind() string {
	if _, here := x.placements().Here(x.t); here {
		return ""
	}
	for _, kind := range target.Kinds {
		t := target.Target{Model: x.t.Model, Kind: kind}
		if _, here := x.placements().Here(t); here || x.o.Registry.Capacity(t).Replicas > 0 {
			return fmt.Sprintf(", which is %s; it is here for the kind %s: is --kind %s meant?", x.t.Kind, kind, kind)
		}
	}
	return ""
}

// knows says whether the model is placed anywhere or has an agent here.
func (d *Decider) knows(model string) bool {
	for _, m := range d.Models() {
		if m.Model == model {
			return true
		}
	}
	return false
}

// distance is how many bytes must be put in, taken out or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
