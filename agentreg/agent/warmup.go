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

// retryEvery is the pause between two tries of a request that a healthy engine refused.
const retryEvery = time.Second

// needsWarmup reports whether the engine must answer a request of the agent before it is
// registered.
func (c *Config) needsWarmup() bool {
	if c.Warmup != nil {
		return *c.Warmup
	}
	return c.engine().Warmup && slices.Contains(c.kinds(), target.Chat)
}

// makeReady waits until a healthy engine's models are known and, if needed, it is warmed up.
// It returns the last problem if ctx ends first.
func (a *agent) makeReady(ctx context.Context) error {
	if err := a.retry(ctx, a.discover); err != nil {
		return err
	}
	if !a.cfg.needsWarmup() {
		return nil
	}
	return a.retry(ctx, a.warmUp)
}

// retry calls try until it succeeds, and logs each problem that differs from the one before.
// It returns the last problem if ctx ends first.
func (a *agent) retry(ctx context.Context, try func(context.Context) error) error {
	var problem error
	logged := ""
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || problem == nil { // otherwise err says only that ctx ended
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

// warmUp sends the engine a first chat completion.
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
