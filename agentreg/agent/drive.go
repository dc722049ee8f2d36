// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// The limits of backoff.
const (
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
	// stableTime is how long an engine must serve before earlier failures no longer count.
	stableTime = 30 * time.Second
)

var (
	errReleased = errors.New("no router wants it any more")
	errEnded    = errors.New("the engine ended")
)

// backoff returns how long the next start waits after this many starts in a row that failed,
// or whose engine ended soon. The first retry does not wait.
func backoff(failures int) time.Duration {
	if failures < 2 {
		return 0
	}
	d := min(firstBackoff<<min(failures-2, 10), maxBackoff)
	return d/2 + rand.N(d/2) //nolint:gosec // jitter is no secret
}

// maxGroupWait is the longest backoff that an agent of a group waits for. A waiting agent
// takes room of its group, so the wake fails at once if the wait would be longer.
const maxGroupWait = 2 * time.Second

// drive starts the engine whenever it is wanted, and stops it when it is not wanted or
// ctx ends. No process is left when it returns. After failures a Wake waits for the backoff,
// or fails if the agent is in a group and the wait is longer than maxGroupWait.
func (a *agent) drive(ctx context.Context) {
	failures, notBefore := 0, time.Time{}
	for {
		for !a.core.wanted() {
			select {
			case <-ctx.Done():
				return
			case <-a.core.wantChanged:
			}
		}
		if wait := time.Until(notBefore); wait > maxGroupWait && a.cfg.Group.Name != "" {
			a.core.endWake(&failure{
				reason: fmt.Sprintf("the last %d starts of the engine failed, and it is started again in %v at the earliest", failures, wait.Round(time.Second)),
				retry:  wait,
			})
			continue
		} else if wait > 0 {
			a.log.Info().Stringer("for", wait.Round(time.Millisecond)).Int("failures", failures).Msg("waiting before the next start")
			if !pause(ctx, wait) {
				return
			}
			continue // it may not be wanted any more
		}
		pause := backoff(failures + 1)
		if a.runOnce(ctx, pause) {
			failures = 0
		} else {
			failures++
			notBefore = time.Now().Add(pause)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// runOnce runs the engine once, from its start to its end. It returns false if the engine
// failed to start or ended soon. A failed wake tells the routers that the next start waits
// for pause.
func (a *agent) runOnce(ctx context.Context, pause time.Duration) bool {
	begin := time.Now()
	a.core.setPhase(waking, false)
	a.log.Info().Strs("models", a.cfg.Models).Msg("starting the engine")
	e, err := a.wake(ctx)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errReleased) {
			a.core.setPhase(asleep, false)
			return true
		}
		a.log.Warn().Err(err).Msg("the engine did not start")
		failed := *failureOf(err)
		failed.retry = pause
		a.core.endWake(&failed)
		return false
	}
	a.log.Info().Stringer("after", time.Since(begin).Round(time.Millisecond)).Msg("engine is ready")
	a.core.endWake(nil)
	ready := time.Now()
	if err := a.serve(ctx, e); err != nil {
		a.log.Warn().Err(err).Msg("the engine ended by itself")
		a.core.engineEnded()
		return time.Since(ready) >= stableTime
	}
	a.log.Info().Msg("engine stopped")
	a.core.setPhase(asleep, false)
	return true
}

// wake starts the engine and waits until it is ready. If another process has taken the
// chosen port, it tries again with another port. After an error no engine runs.
func (a *agent) wake(ctx context.Context) (*engine, error) {
	for try := 1; ; try++ {
		e, err := a.startAndAwait(ctx)
		if a.cfg.Ports == nil || try == maxPortTries || !errors.Is(err, errPortTaken) {
			return e, err
		}
		a.log.Warn().Err(err).Msg("starting the engine again, with another port")
	}
}

// startAndAwait is one try of wake, with one port.
func (a *agent) startAndAwait(ctx context.Context) (*engine, error) {
	release, err := a.claimPort(ctx)
	if err != nil {
		return nil, err
	}
	e, err := a.start(release)
	if err != nil {
		return nil, &failure{reason: "the engine could not be started", detail: err.Error()}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.cfg.WakeTimeout,
		fmt.Errorf("the engine was not ready within %v", a.cfg.WakeTimeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		select {
		case <-e.proc.Done():
			end(errEnded)
		case <-ctx.Done():
		}
	}()
	var unwanted sync.WaitGroup
	unwanted.Go(func() { a.cancelWhenUnwanted(ctx, end) })
	problem := a.health.await(ctx, a.unhealthyWarning())
	if problem == nil {
		problem = a.checkOwner(ctx, e)
	}
	if problem == nil {
		problem = a.makeReady(ctx)
	}
	cause := context.Cause(ctx) // why ctx ended, if it did: problem may only say that it ended
	end(nil)
	unwanted.Wait() // otherwise it might consume a token of wantChanged that serve needs
	select {
	case <-e.proc.Done(): // even if another process answered at its address
		problem = errEnded
	default:
	}
	if problem == nil {
		return e, nil
	}
	a.stop(e)
	switch {
	case errors.Is(problem, errPortTaken):
		return nil, problem
	case errors.Is(problem, errEnded), errors.Is(cause, errEnded):
		if a.cfg.Ports != nil && len(listening(a.engineAddress())) > 0 {
			return nil, fmt.Errorf("%w: %w", errPortTaken, e.exitError())
		}
		return nil, e.exitError()
	case errors.Is(cause, errReleased), errors.Is(cause, context.Canceled):
		return nil, cause
	default:
		return nil, &failure{reason: cause.Error(), detail: problem.Error()}
	}
}

// cancelWhenUnwanted calls end with errReleased when the engine is no longer wanted.
func (a *agent) cancelWhenUnwanted(ctx context.Context, end context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.core.wantChanged:
			if !a.core.wanted() {
				end(errReleased)
				return
			}
		}
	}
}

// serve watches a running engine until it ends by itself, which is an error, or is stopped
// because it is not wanted or ctx ends.
func (a *agent) serve(ctx context.Context, e *engine) error {
	watching, unwatch := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.watch(watching)
	}()
	defer func() {
		unwatch()
		<-done
	}()
	for {
		var again <-chan time.Time
		if !a.core.keepRunning() {
			if !a.hasRequests(ctx) {
				break
			}
			a.logBusy()
			again = time.After(retryEvery)
		}
		select {
		case <-e.proc.Done():
			a.stop(e) // ends processes that it may have left in its group
			return e.exitError()
		case <-ctx.Done():
			a.stop(e)
			return nil
		case <-a.core.wantChanged:
		case <-again:
		}
	}
	a.stop(e)
	return nil
}

// hasRequests reports whether the engine has requests, by its own signals. The routers count none
// when they send Sleep, but a router that was restarted does not count requests that Envoy
// still has from before.
func (a *agent) hasRequests(ctx context.Context) bool {
	s := a.readSignals(ctx)
	return s.Running != nil && *s.Running > 0 || s.Waiting != nil && *s.Waiting > 0
}

// logBusy logs once per start of the engine why it is not stopped.
func (a *agent) logBusy() {
	if a.busyLogged.CompareAndSwap(false, true) {
		a.log.Info().Msg("the engine still has requests: it is stopped after them")
	}
}
