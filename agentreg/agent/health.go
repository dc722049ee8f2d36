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
	// A warning is logged every warnEvery while an engine does not become healthy, the
	// first after firstWarning if the engine should be running already.
	firstWarning = 5 * time.Second
	warnEvery    = time.Minute
	// checkTimeout is long enough for a busy engine. One that is not up yet refuses at
	// once.
	checkTimeout = 5 * time.Second
)

var errNotChecked = errors.New("checking health: no answer")

// pollAfter returns the interval of the checks of an engine that has been starting for this
// long.
func pollAfter(starting time.Duration) time.Duration {
	if starting < eagerTime {
		return eagerPoll
	}
	// 0.1 s longer for every 3 s.
	return min(eagerPoll+(starting-eagerTime)/30, steadyPoll)
}

// checker checks the health of an engine.
type checker struct {
	api         api
	path        string
	checkModels func(context.Context) error // checks that the engine lists its models; nil: not checked
}

// check checks the health once.
func (h checker) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if _, err := h.api.get(ctx, h.path); err != nil {
		return fmt.Errorf("checking health: %w", err)
	}
	if h.checkModels == nil {
		return nil
	}
	return h.checkModels(ctx)
}

// healthWarning calls log when an engine is still not healthy after a time.
type healthWarning struct {
	after time.Duration
	log   func(problem error)
}

// unhealthyWarning returns the warning about an engine that is not healthy. It names flags
// only if the agent does not start the engine: one that it starts may take long to load, and
// its settings may come from the file of holdgate up.
func (a *agent) unhealthyWarning() healthWarning {
	if a.core.onDemand() {
		return healthWarning{warnEvery, func(problem error) {
			a.log.Warn().Err(problem).Msg("the engine is not healthy yet: does it listen on this port, and is its health path right?")
		}}
	}
	return healthWarning{firstWarning, func(problem error) {
		a.log.Warn().Err(problem).Msg("the engine is not healthy: does it listen at --backend-url, and is --health-path right?")
	}}
}

// await waits until the engine is healthy, and warns if that takes long. It returns the last
// problem if ctx ends first.
func (h checker) await(ctx context.Context, w healthWarning) error {
	begin := time.Now()
	next := begin.Add(w.after)
	problem := errNotChecked
	for {
		checkedAt := time.Now()
		err := h.check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // otherwise err says only that ctx ended
			problem = err
			if now := time.Now(); !now.Before(next) {
				w.log(problem)
				next = now.Add(warnEvery)
			}
		}
		// The interval counts from the start of the check, which may take long.
		if !pause(ctx, pollAfter(time.Since(begin))-time.Since(checkedAt)) {
			return problem
		}
	}
}

// pause waits for d. It returns false if ctx ends first.
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

// watch checks the health of a serving engine and reads its signals, and stores both in
// core, until ctx ends.
func (a *agent) watch(ctx context.Context) {
	var sampling sync.WaitGroup
	defer sampling.Wait()
	sampling.Go(func() { a.watchSignals(ctx) })
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

// setHealth stores the result of a check in core, and logs a change.
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

// recheck handles a router's StatusRequest. The engine has refused a request, so that one
// failed check makes it unhealthy.
func (a *agent) recheck(ctx context.Context, s *session, seq uint64) {
	err := a.health.check(ctx)
	if ctx.Err() != nil {
		return
	}
	a.setHealth(err)
	a.core.acknowledge(s, seq)
}
