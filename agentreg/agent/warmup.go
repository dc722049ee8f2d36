// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"slices"
	"time"

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
	return engines[c.Engine].warmup && slices.Contains(c.kinds(), target.Chat)
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

// warm asks for one token, which makes engines load what they have put off.
func (a *agent) warm(ctx context.Context) error {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body, err := json.Marshal(struct {
		Model     string    `json:"model"`
		Messages  []message `json:"messages"`
		MaxTokens int       `json:"max_tokens"`
	}{a.cfg.Models[0], []message{{"user", "Hi"}}, 1})
	if err == nil {
		_, err = a.api.post(ctx, "/v1/chat/completions", body)
	}
	if err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	return nil
}
