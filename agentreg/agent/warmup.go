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

// retryEvery is the pause before an engine that is healthy is asked again for
// what it refused.
const retryEvery = time.Second

// warms says whether the engine gets a first request before those of clients.
func (c *Config) warms() bool {
	if c.Warmup != nil {
		return *c.Warmup
	}
	return c.engine().Warmup && slices.Contains(c.kinds(), target.Chat)
}

// ready waits until the engine can serve what it is registered for: its models
// are known, and it is warm. It returns the last problem when ctx ends before.
func (a *agent) ready(ctx context.Context) error {
	if err := a.persist(ctx, a.discover); err != nil {
		return err
	}
	if !a.cfg.warms() {
		return nil
	}
	return a.persist(ctx, a.warm)
}

// persist tries until it works, and logs each problem that is another than the
// last.
func (a *agent) persist(ctx context.Context, try func(context.Context) error) error {
	var problem error
	logged := ""
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || problem == nil { // else it says no more than that ctx ended
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

// warm sends the engine its first request.
func (a *agent) warm(ctx context.Context) error {
	path, body, err := engines.WarmupRequest(a.cfg.Models[0])
	if err == nil {
		_, err = a.api.post(ctx, path, body)
	}
	if err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	return nil
}
