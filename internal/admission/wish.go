// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/policy"
)

// Wish is what a request wants of the replicas, and what came of it so far. It
// lives as long as the request, across its passes through the rehold lane. Whoever
// has the request's waiter, or its grant, may use it.
type Wish struct {
	Key    *access.Key
	Tokens int64 // the footprint

	reach int              // the last of the policy's steps that is open to it
	tries map[string]int64 // replicas that gave no answer, by step
	again bool             // it had a slot, and its replica gave no answer
}

// Again says whether the request had a slot whose replica gave no answer.
func (w *Wish) Again() bool { return w.again }

// spent says whether a step has no tries left.
func (w *Wish) spent(s *policy.Step) bool { return s.MaxTries > 0 && w.tries[s.Name] >= s.MaxTries }

// exhausted says whether no step has any.
func (w *Wish) exhausted(steps []policy.Step) bool {
	for i := range steps {
		if !w.spent(&steps[i]) {
			return false
		}
	}
	return len(steps) > 0
}

// fits is a step's match as a filter of the registry.
type fits struct{ match *policy.Match }

// Fits is part of agentreg.Filter.
func (f fits) Fits(a *agentreg.AgentInfo) bool {
	return f.match.Fits(a.Engine, a.Region, a.Labels)
}

// walk tries the steps that are open to the request, in their order, until a slot
// was taken. While none of them has a replica, the next one is open too.
func (w *Wish) walk(steps []policy.Step, try func(*policy.Step) agentreg.Outcome) (taken *policy.Step) {
	replicas := false
	for i := range steps {
		step := &steps[i]
		switch {
		case i > w.reach && replicas:
			return nil
		case w.spent(step):
			continue
		}
		switch try(step) {
		case agentreg.Taken:
			return step
		case agentreg.Full:
			replicas = true
		case agentreg.None:
		}
	}
	return nil
}
