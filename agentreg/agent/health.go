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

// How often health is checked: often while an engine starts, since requests wait for it,
// and rarely while it serves.
const (
	eagerPoll  = 100 * time.Millisecond
	eagerTime  = time.Minute
	steadyPoll = 2 * time.Second
	// A warning is logged every warnEvery while an engine does not become healthy, and
	// after firstWarning if it should run already.
	firstWarning = 5 * time.Second
	warnEvery    = time.Minute
	// checkTimeout is long enough for a busy engine. One that is not up yet refuses at
	// once.
	checkTimeout = 5 * time.Second
)

var errNotChecked = errors.New("checking health: no answer")

// pollAfter is the pause before the next check of an engine that has been starting for
// so long.
func pollAfter(starting time.Duration) time.Duration {
	if starting < eagerTime {
		return eagerPoll
	}
	// 0.1 s longer for every 3 s.
	return min(eagerPoll+(starting-eagerTime)/30, steadyPoll)
}

// checker checks the health of an engine.
type checker struct {
	api   api
	path  string
	lists func(context.Context) error // checks that the engine lists its models; nil: not checked
}

// check checks once.
func (h checker) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if _, err := h.api.get(ctx, h.path); err != nil {
		return fmt.Errorf("checking health: %w", err)
	}
	if h.lists == nil {
		return nil
	}
	return h.lists(ctx)
}

// healthWarning is how long an engine may be unhealthy before log is called.
type healthWarning struct {
	after time.Duration
	log   func(problem error)
}

// unhealthyWarning names the flags when the agent does not start the engine. An engine
// that it started may load for long, and its agent may have no flags (holdgate up).
func (a *agent) unhealthyWarning() healthWarning {
	d := healthWarning{firstWarning, func(problem error) {
		a.log.Warn().Err(problem).Msg("the engine is not healthy: does it listen at --backend-url, and is --health-path right?")
	}}
	if a.core.onDemand() {
		d = healthWarning{warnEvery, func(problem error) {
			a.log.Warn().Err(problem).Msg("the engine is not healthy yet: does it listen on this port, and is its health path right?")
		}}
	}
	return d
}

// await waits until the engine is healthy, and warns when that takes long. It returns the
// last problem when ctx ends before.
func (h checker) await(ctx context.Context, d healthWarning) error {
	begin := time.Now()
	next := begin.Add(d.after)
	problem := errNotChecked
	for {
		asked := time.Now()
		err := h.check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // otherwise err is only that ctx ended
			problem = err
			if now := time.Now(); !now.Before(next) {
				d.log(problem)
				next = now.Add(warnEvery)
			}
		}
		// Counted from the beginning of the check, which may take long.
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

// watch keeps what core has of a serving engine up to date, its health and how busy it
// is, until ctx ends.
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
			a.setHealth(nil)
			continue
		}
		if descriptors.UsedUp(err) {
			continue // the engine was not reached
		}
		if failed++; failed >= a.cfg.UnhealthyAfter {
			a.setHealth(err)
		}
	}
}

// setHealth passes the result of a check on to core, and logs a change.
func (a *agent) setHealth(err error) {
	if !a.core.setHealthy(err == nil) {
		return
	}
	if err != nil {
		a.log.Warn().Err(err).Msg("engine is unhealthy")
		notify(a.unhealthy)
		return
	}
	a.log.Info().Msg("engine is healthy again")
}

// recheck answers a router's StatusRequest: the engine refused a request, so one failed
// check is enough to call it unhealthy.
func (a *agent) recheck(ctx context.Context, s *session, seq uint64) {
	err := a.health.check(ctx)
	if ctx.Err() != nil {
		return
	}
	a.setHealth(err)
	a.core.acknowledge(s, seq)
}
