// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"time"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

// Attempts is what a request remembers of the replicas that it was sent to. It is the
// request's holdstate.Claim, and lives as long as the request, across its passes. It may
// be used by one goroutine at a time, the one that has the request's waiter or its grant.
type Attempts struct {
	capacity *Capacity

	Target target.Target
	Key    *access.Key
	Tokens int64 // the footprint

	lastOpen   int              // the index of the last step of the policy that is open to it
	tries      map[string]int64 // by step: replicas that gave no answer
	unanswered bool             // a replica gave no answer
	deaths     map[string]death // by address: replicas that died under the request
}

// Attempts returns the attempts of a request that was sent to no replica yet. tokens is
// its footprint.
func (c *Capacity) Attempts(t target.Target, key *access.Key, tokens int64) Attempts {
	return Attempts{capacity: c, Target: t, Key: key, Tokens: tokens}
}

// Unanswered reports whether the request was sent to a replica that gave no answer.
func (a *Attempts) Unanswered() bool { return a.unanswered }

// death is a replica that died under the request.
type death struct {
	times int
	until time.Time // the request is not sent to the replica before
}

// firstPause is how long a request is not sent to a replica that died under it. Each
// further pause is twice as long. A replica that restarts may report itself healthy a
// millisecond after it dropped the request.
const firstPause = 500 * time.Millisecond

// maxDoublings bounds how often the pause doubles, because a pool may refuse requests for
// a long time.
const maxDoublings = 2

// died counts the death of a replica under the request, and returns how long the request
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

// paused reports whether a replica is left out because it died under the request.
func (a *Attempts) paused() bool {
	for _, d := range a.deaths {
		if time.Now().Before(d.until) {
			return true
		}
	}
	return false
}

// failed counts a replica that gave no answer; step is the step of the policy that it was
// taken from.
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

// usedUp reports whether a step has no tries left.
func (a *Attempts) usedUp(s *policy.Step) bool {
	return s.MaxTries > 0 && a.tries[s.Name] >= s.MaxTries
}

// allUsedUp reports whether there are steps and none of them has tries left.
func (a *Attempts) allUsedUp(steps []policy.Step) bool {
	for i := range steps {
		if !a.usedUp(&steps[i]) {
			return false
		}
	}
	return len(steps) > 0
}

// tryOpen tries the steps that are open to the request in order, and returns the one that
// had a slot. While none of the open steps has a replica, the next step is open too.
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

// filter returns the replicas that the request may be sent to now: those that match, or all
// without a match, except those that are paused. nil is all replicas.
func (a *Attempts) filter(match *policy.Match) agentreg.Filter {
	switch {
	case a.deaths != nil:
		return unpaused{match, a.deaths}
	case match != nil:
		return matching{match}
	}
	return nil
}

// matching is the replicas that match.
type matching struct{ match *policy.Match }

// Fits is part of agentreg.Filter.
func (m matching) Fits(r *agentreg.AgentInfo) bool { return m.match.Fits(r.Engine, r.Region, r.Labels) }

// unpaused is the replicas that match, nil for all, and are not paused.
type unpaused struct {
	match  *policy.Match
	deaths map[string]death
}

// Fits is part of agentreg.Filter.
func (u unpaused) Fits(r *agentreg.AgentInfo) bool {
	return !time.Now().Before(u.deaths[r.Address].until) && (u.match == nil || matching{u.match}.Fits(r))
}
