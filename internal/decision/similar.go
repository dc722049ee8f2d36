// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"fmt"
	"strings"

	"github.com/holdgate/holdgate/internal/target"
)

// similar returns the name of a model or an alias that is most similar to the requested
// name; empty when the requested model exists, or none is similar.
func (t *trace) similar() string {
	if _, found := t.Find(t.target.Model); found {
		return ""
	}
	names := t.o.Policies().Aliases()
	for _, m := range t.Models() {
		names = append(names, m.Model)
	}
	best, least := "", len(t.asked)/3+1 // a third of the name may differ
	for _, name := range sortedNames(names) {
		if d := distance(strings.ToLower(name), strings.ToLower(t.asked)); d < least {
			best, least = name, d
		}
	}
	return best
}

// otherKind returns a hint at a kind for which the model is at this site, when it is not for
// the requested kind.
func (t *trace) otherKind() string {
	if _, here := t.placements().Here(t.target); here {
		return ""
	}
	for _, kind := range target.Kinds {
		other := target.Target{Model: t.target.Model, Kind: kind}
		if _, here := t.placements().Here(other); here || t.o.Registry.Serving(other) > 0 {
			return fmt.Sprintf(", which is %s; it is here for the kind %s: is --kind %s meant?", t.target.Kind, kind, kind)
		}
	}
	return ""
}

// distance returns how many bytes must be added, removed or replaced to turn a into b.
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
