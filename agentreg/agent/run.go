// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Run runs an agent until ctx ends; it then returns nil. It returns an error if the
// configuration is invalid or a router rejects the agent. When it returns, the routers have
// been sent Bye and the engine that it started has ended.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Ports != nil {
		l, err := cfg.Ports.choose(ctx)
		if err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		_ = l.Close() // the port is claimed again when the engine starts
		cfg.BackendURL = "http://" + l.Addr().String()
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a, err := newAgent(ctx, cfg.withDefaults())
	if err != nil {
		return err
	}
	if cfg.Begun != nil {
		cfg.Begun()
	}
	// The engine outlives the links, since no request may be sent to one that is ending.
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngine()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var failure error
	var once sync.Once
	a.fail = func(err error) {
		once.Do(func() { failure = err })
		cancel(err)
	}

	var engine sync.WaitGroup
	if a.core.onDemand() {
		engine.Go(func() { a.drive(engineCtx) })
	} else if err := a.awaitEngineAndTryRouters(ctx); err == nil {
		a.freezeRunning(ctx)
		engine.Go(func() { a.watch(engineCtx) })
	} else if ctx.Err() == nil {
		a.fail(err)
	}
	var links sync.WaitGroup
	for _, r := range cfg.Routers {
		links.Go(func() { a.keepLinks(ctx, r) })
	}
	<-ctx.Done()
	if a.drainTimeout() > 0 {
		a.log.Info().Msg("leaving the routers: the engine is stopped when their requests are over; a second Ctrl-C stops it at once")
	}
	drainCtx, cancelDrain := context.WithTimeout(engineCtx, a.drainTimeout())
	defer cancelDrain()
	links.Wait()
	// The links do not wait for requests that Envoy still has from a router that is gone.
	for a.hasRequests(drainCtx) && pause(drainCtx, eagerPoll) {
		a.logBusy()
	}
	stopEngine()
	engine.Wait()
	a.background.Wait()
	once.Do(func() {}) // orders the read of failure after its write
	return failure
}

// drainTimeout returns how long the agent waits for the routers' requests when it shuts
// down. It does not wait if it does not stop the engine.
func (a *agent) drainTimeout() time.Duration {
	if !a.core.onDemand() {
		return 0
	}
	return a.cfg.DrainTimeout
}

// awaitEngineAndTryRouters is awaitEngine, and meanwhile logs which routers cannot be
// reached.
func (a *agent) awaitEngineAndTryRouters(ctx context.Context) error {
	tryCtx, stop := context.WithCancel(ctx)
	var tries sync.WaitGroup
	for _, r := range a.cfg.Routers {
		if a.cfg.dial != nil {
			break // dial does not connect to addresses
		}
		tries.Go(func() { a.tryRouter(tryCtx, r) })
	}
	err := a.awaitEngine(ctx)
	stop()
	tries.Wait()
	return err
}

// awaitEngine waits for an engine that the agent does not start: without a limit until it
// is healthy, and then up to the wake timeout until it is ready.
func (a *agent) awaitEngine(ctx context.Context) error {
	a.log.Info().Str("backend", a.cfg.BackendURL).Msg("waiting for the engine")
	begin := time.Now()
	if err := a.health.await(ctx, a.unhealthyWarning()); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, a.cfg.WakeTimeout)
	defer cancel()
	if err := a.makeReady(limited); err != nil {
		return fmt.Errorf("agent: the engine is healthy, but was not ready within %v: %w", a.cfg.WakeTimeout, err)
	}
	a.log.Info().Stringer("after", time.Since(begin).Round(time.Millisecond)).Msg("engine is ready")
	a.core.setPhase(serving, true)
	return nil
}
