// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/hint"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

// Attempts is the holdstate.Claim of a request. It records to which replicas the request was
// sent, and how they failed. It lives as long as the request, across its passes. Only one
// goroutine at a time may use it, the one that has the request's waiter or grant.
type Attempts struct {
	capacity *Capacity

	Target target.Target
	Key    *access.Key
	Tokens int64 // the footprint
	// Hint has the addresses to which the request may be sent; nil: to any.
	Hint *hint.Hint

	lastOpen   int              // the index of the last step of the policy that it may use
	tries      map[string]int64 // by step: the number of replicas that gave no answer
	unanswered bool             // a replica gave no answer
	deaths     map[string]death // by address: replicas that died under the request
}

// Attempts returns the attempts of a new request. tokens is its footprint.
func (c *Capacity) Attempts(t target.Target, key *access.Key, tokens int64) Attempts {
	return Attempts{capacity: c, Target: t, Key: key, Tokens: tokens}
}

// Unanswered reports whether the request was sent to a replica that gave no answer.
func (a *Attempts) Unanswered() bool { return a.unanswered }

// death describes a replica that died under the request.
type death struct {
	times int
	until time.Time // the request is not sent to the replica before then
}

// firstPause is how long a request is not sent to a replica that died under it. Each
// further pause is twice as long. It is needed because a replica that restarts may report
// itself healthy a millisecond after it dropped the request.
const firstPause = 500 * time.Millisecond

// maxDoublings limits how often the pause doubles: a pool behind one address may refuse
// requests for a long time.
const maxDoublings = 2

// died records the death of a replica under the request, and returns how long the request
// is not sent to it.
func (a *Attempts) died(address string) (pause time.Duration) {
	if a.deaths == nil {
		a.deaths = map[string]death{}
	}
	d := a.deaths[address]
	pause = firstPause << min(d.times, maxDoublings)
	a.deaths[address] = death{times: d.times + 1, until: time.Now().Add(pause)}
	return pause
}

// paused reports whether the request is not sent to some replica because of a death.
func (a *Attempts) paused() bool {
	for _, d := range a.deaths {
		if time.Now().Before(d.until) {
			return true
		}
	}
	return false
}

// failed counts a replica that gave no answer. step is the step of the policy by which it
// was chosen, empty without steps.
func (a *Attempts) failed(step string) {
	a.unanswered = true
	if step == "" {
		return
	}
	if a.tries == nil {
		a.tries = map[string]int64{}
	}
	a.tries[step]++
}

// usedUp reports whether the request has no tries left in a step.
func (a *Attempts) usedUp(s *policy.Step) bool {
	return s.MaxTries > 0 && a.tries[s.Name] >= s.MaxTries
}

// allUsedUp reports whether there are steps, and the request has no tries left in any.
func (a *Attempts) allUsedUp(steps []policy.Step) bool {
	for i := range steps {
		if !a.usedUp(&steps[i]) {
			return false
		}
	}
	return len(steps) > 0
}

// tryOpen calls try for the steps that the request may use, in order, and returns the one
// that had a slot, or nil. If none of them has a replica, it tries further steps until one
// has.
func (a *Attempts) tryOpen(steps []policy.Step, try func(*policy.Step) agentreg.Outcome) (taken *policy.Step) {
	replicas := false
	for i := range steps {
		step := &steps[i]
		switch {
		case i > a.lastOpen && replicas:
			return nil
		case a.usedUp(step):
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

// filter returns a filter for the replicas that the request may be sent to now: those that
// match and are in its hint, except during the pause after a death. match may be nil, and a nil
// filter fits all replicas.
func (a *Attempts) filter(match *policy.Match) agentreg.Filter {
	switch {
	case a.deaths != nil || a.Hint != nil:
		return restricted{match, a.deaths, a.Hint}
	case match != nil:
		return matching{match}
	}
	return nil
}

// matching fits the replicas that match.
type matching struct{ match *policy.Match }

// Fits is part of agentreg.Filter.
func (m matching) Fits(r *agentreg.AgentInfo) bool { return m.match.Fits(r.Engine, r.Region, r.Labels) }

// restricted fits the replicas that match, all for a nil match, are in the hint, and not in a
// pause.
type restricted struct {
	match  *policy.Match
	deaths map[string]death
	hint   *hint.Hint
}

// Fits is part of agentreg.Filter.
func (u restricted) Fits(r *agentreg.AgentInfo) bool {
	return (u.deaths == nil || !time.Now().Before(u.deaths[r.Address].until)) &&
		(u.match == nil || matching{u.match}.Fits(r)) && u.hint.Fits(r.Address)
}

// Hinted reports whether a replica in routing is one that the request may be sent to by its hint,
// in some step of the policy.
func (a *Attempts) Hinted() bool {
	has := func(match *policy.Match) bool {
		return a.capacity.registry.CapacityFrom(a.Target, restricted{match: match, hint: a.Hint}).Replicas > 0
	}
	steps := a.policy().Steps
	return len(steps) == 0 && has(nil) || slices.ContainsFunc(steps, func(s policy.Step) bool { return has(&s.Match) })
}
