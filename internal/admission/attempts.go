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

	reach int              // the last of the policy's steps that is open to it
	tries map[string]int64 // replicas that gave no answer, by step
	again bool             // it had a slot, and its replica gave no answer

	deaths map[string]death // by address: replicas that died under the request
}

// Attempts returns the attempts of a request that was sent to no replica yet. tokens is
// its footprint.
func (c *Capacity) Attempts(t target.Target, key *access.Key, tokens int64) Attempts {
	return Attempts{capacity: c, Target: t, Key: key, Tokens: tokens}
}

// death is what a request remembers of a replica that died under it.
type death struct {
	times int
	until time.Time // the replica is not tried again before
}

// firstPause is how long a request leaves a replica alone that died under it; the
// next pause is twice as long. A replica that is restarting may call itself healthy
// a millisecond after it dropped the request.
const firstPause = 500 * time.Millisecond

// maxPauses bounds how often the pause doubles: a pool may say for long that it takes
// no requests.
const maxPauses = 2

// died remembers that a replica died under the request, and returns the pause
// before its next try there.
func (a *Attempts) died(address string) time.Duration {
	if a.deaths == nil {
		a.deaths = map[string]death{}
	}
	d := a.deaths[address]
	pause := firstPause << min(d.times, maxPauses)
	a.deaths[address] = death{times: d.times + 1, until: time.Now().Add(pause)}
	return pause
}

// pausing says whether a pause is not over.
func (a *Attempts) pausing() bool {
	for _, d := range a.deaths {
		if time.Now().Before(d.until) {
			return true
		}
	}
	return false
}

// Again says whether the request had a slot whose replica gave no answer.
func (a *Attempts) Again() bool { return a.again }

// spent says whether a step has no tries left.
func (a *Attempts) spent(s *policy.Step) bool { return s.MaxTries > 0 && a.tries[s.Name] >= s.MaxTries }

// exhausted says whether no step has any.
func (a *Attempts) exhausted(steps []policy.Step) bool {
	for i := range steps {
		if !a.spent(&steps[i]) {
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

// among returns the filter of the replicas that the request may have now: those that
// match, or all without a match, less those that died under it.
func (a *Attempts) among(match *policy.Match) agentreg.Filter {
	switch {
	case a.deaths != nil:
		return untried{match, a.deaths}
	case match != nil:
		return fits{match}
	}
	return nil
}

// untried is a match, nil for all, without the replicas whose pause is not over.
type untried struct {
	match  *policy.Match
	deaths map[string]death
}

// Fits is part of agentreg.Filter.
func (u untried) Fits(a *agentreg.AgentInfo) bool {
	return !time.Now().Before(u.deaths[a.Address].until) && (u.match == nil || fits{u.match}.Fits(a))
}

// walk tries the steps that are open to the request, in their order, until a slot
// was taken. While none of them has a replica, the next one is open too.
func (a *Attempts) walk(steps []policy.Step, try func(*policy.Step) agentreg.Outcome) (taken *policy.Step) {
	replicas := false
	for i := range steps {
		step := &steps[i]
		switch {
		case i > a.reach && replicas:
			return nil
		case a.spent(step):
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
