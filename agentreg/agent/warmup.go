// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/internal/target"
)

// retryEvery is the pause before a request that a healthy engine refused is sent again.
const retryEvery = time.Second

// needsWarmup reports whether the engine gets a request before those of clients.
func (c *Config) needsWarmup() bool {
	if c.Warmup != nil {
		return *c.Warmup
	}
	return c.engine().Warmup && slices.Contains(c.kinds(), target.Chat)
}

// makeReady waits until the engine can serve what it is registered for: its models
// are known, and it is warm. It returns the last problem when ctx ends before.
func (a *agent) makeReady(ctx context.Context) error {
	if err := a.retry(ctx, a.discover); err != nil {
		return err
	}
	if !a.cfg.needsWarmup() {
		return nil
	}
	return a.retry(ctx, a.warmUp)
}

// retry calls try until it succeeds, and logs each problem that differs from the last.
func (a *agent) retry(ctx context.Context, try func(context.Context) error) error {
	var problem error
	logged := ""
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || problem == nil { // otherwise err is only that ctx ended
			problem = err
		}
		if problem.Error() != logged {
			logged = problem.Error()
			a.log.Warn().Err(problem).Msg("the engine is not ready yet")
		}
		if !pause(ctx, retryEvery) {
			return problem
		}
	}
}

// warmUp sends the engine its first request.
func (a *agent) warmUp(ctx context.Context) error {
	path, body, err := engines.WarmupRequest(a.cfg.Models[0])
	if err == nil {
		_, err = a.api.post(ctx, path, body)
	}
	if err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	return nil
}
