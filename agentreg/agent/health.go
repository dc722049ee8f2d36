// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdgate/holdgate/internal/descriptors"
)

// How often health is asked for: often while an engine is expected, since
// every moment counts for the requests that wait, and rarely while it serves.
const (
	eagerPoll  = 100 * time.Millisecond
	eagerTime  = time.Minute
	steadyPoll = 2 * time.Second
	// An engine that is not healthy is told of each doubtEvery, and one that is said
	// to run already after firstDoubt, too.
	firstDoubt = 5 * time.Second
	doubtEvery = time.Minute
	// checkTimeout is for an engine that is busy, not for one that is slow to
	// accept: those refuse or answer at once.
	checkTimeout = 5 * time.Second
)

var errNotChecked = errors.New("asking for health: no answer")

// pollAfter is the pause before the next check of an engine that has been
// expected for so long.
func pollAfter(expected time.Duration) time.Duration {
	if expected < eagerTime {
		return eagerPoll
	}
	// A tenth of a second more for each three seconds.
	return min(eagerPoll+(expected-eagerTime)/30, steadyPoll)
}

// checker asks an engine for its health.
type checker struct {
	api   api
	path  string
	lists func(context.Context) error // asks whether the models are there; nil: it does not matter
}

// check asks once.
func (h checker) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if _, err := h.api.get(ctx, h.path); err != nil {
		return fmt.Errorf("asking for health: %w", err)
	}
	if h.lists == nil {
		return nil
	}
	return h.lists(ctx)
}

// doubt is how long an engine may be not healthy before the log says why, and what
// to look at.
type doubt struct {
	first time.Duration
	say   func(problem error)
}

// doubt is about the flags when somebody else starts the engine. One that has just
// been started may load for long, and its agent may have no flags.
func (a *agent) doubt() doubt {
	d := doubt{firstDoubt, func(problem error) {
		a.log.Warn().Err(problem).Msg("the engine is not healthy: does it listen at --backend-url, and is --health-path right?")
	}}
	if a.core.onDemand() {
		d = doubt{doubtEvery, func(problem error) {
			a.log.Warn().Err(problem).Msg("the engine is not healthy yet: does it listen on this port, and is its health path right?")
		}}
	}
	return d
}

// await asks until the engine is healthy, and says when that takes long. It returns the last problem when ctx
// ends before.
func (h checker) await(ctx context.Context, d doubt) error {
	begin := time.Now()
	next := begin.Add(d.first)
	problem := errNotChecked
	for {
		asked := time.Now()
		err := h.check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // else it says no more than that ctx ended
			problem = err
			if now := time.Now(); !now.Before(next) {
				d.say(problem)
				next = now.Add(doubtEvery)
			}
		}
		// From question to question, for the answer may take its time.
		if !pause(ctx, pollAfter(time.Since(begin))-time.Since(asked)) {
			return problem
		}
	}
}

// pause waits for d, and reports false when ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// watch keeps core's view of a serving engine, its health and how busy it is,
// until ctx ends.
func (a *agent) watch(ctx context.Context) {
	var sampling sync.WaitGroup
	defer sampling.Wait()
	sampling.Go(func() { a.sample(ctx) })
	failed := 0
	for {
		wait := steadyPoll
		if failed > 0 {
			wait = eagerPoll * 5
		}
		if !pause(ctx, wait) {
			return
		}
		err := a.health.check(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failed = 0
			a.noteHealth(nil)
			continue
		}
		if descriptors.UsedUp(err) {
			continue // the engine was not asked
		}
		if failed++; failed >= a.cfg.UnhealthyAfter {
			a.noteHealth(err)
		}
	}
}

// noteHealth passes a verdict on to core and logs it when it is news.
func (a *agent) noteHealth(err error) {
	if !a.core.setHealthy(err == nil) {
		return
	}
	if err != nil {
		a.log.Warn().Err(err).Msg("engine is unhealthy")
		poke(a.sick)
		return
	}
	a.log.Info().Msg("engine is healthy again")
}

// recheck answers a router's StatusRequest: a request has seen the engine
// refuse, so one check is enough for a verdict.
func (a *agent) recheck(ctx context.Context, s *session, seq uint64) {
	err := a.health.check(ctx)
	if ctx.Err() != nil {
		return
	}
	a.noteHealth(err)
	a.core.answered(s, seq)
}
