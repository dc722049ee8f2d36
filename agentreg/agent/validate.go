// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/internal/target"
)

// Validate returns all problems of the Config as settings.Problems, by flag.
func (c *Config) Validate() error {
	var p settings.Problems
	if len(c.Routers) == 0 {
		p.Add("--router", "is required")
	}
	for _, r := range c.Routers {
		p.Check("--router", checkRouter(r, c.TLS.enabled()))
	}
	c.TLS.check(&p)
	for _, s := range c.settings() {
		if s.check != nil {
			p.Check("--"+s.flag, s.check())
		}
	}
	c.checkTargets(&p)
	c.checkLabels(&p)
	c.Group.check(&p)
	c.checkExec(&p)
	return p.Err()
}

func (c *Config) checkHealthPath() error {
	if c.HealthPath != "" && !strings.HasPrefix(c.HealthPath, "/") {
		return fmt.Errorf("must begin with /, is %q", c.HealthPath)
	}
	return nil
}

func (c *Config) checkSlots() error {
	if c.Slots < 1 || c.Slots > protocol.MaxSlots {
		return fmt.Errorf("must be between 1 and %d, is %d", protocol.MaxSlots, c.Slots)
	}
	return nil
}

func (c *Config) checkRegion() error {
	if c.Region == "" {
		return nil
	}
	return protocol.CheckName(c.Region)
}

// checkTargets checks the models and kinds.
func (c *Config) checkTargets(p *settings.Problems) {
	if len(c.Models) == 0 && len(c.Exec) > 0 {
		p.Add("--model", "is required with --exec: an engine that sleeps cannot be asked for its models")
	}
	if len(c.Models) > protocol.MaxModels {
		p.Add("--model", "at most %d, are %d", protocol.MaxModels, len(c.Models))
	}
	for i, m := range c.Models {
		p.Check("--model", protocol.CheckName(m))
		if slices.Contains(c.Models[:i], m) {
			p.Add("--model", "%q is given twice", m)
		}
	}
	c.checkKinds(p)
}

func (c *Config) checkKinds(p *settings.Problems) {
	engine, unknown := engines.Find(c.Engine)
	for _, name := range c.Kinds {
		k, err := protocol.ParseKind(name)
		if err == nil && unknown == nil && !slices.Contains(engine.Kinds, k) {
			err = fmt.Errorf("%s has no %s", c.Engine, name)
		}
		p.Check("--capability", err)
	}
	if c.Warmup == nil || !*c.Warmup || unknown != nil {
		return
	}
	if !slices.Contains(c.ServedKinds(), target.Chat) {
		p.Add("--warmup", "is a chat completion: it needs --capability llm")
	}
}

func (c *Config) checkLabels(p *settings.Problems) {
	if len(c.Labels) > protocol.MaxLabels {
		p.Add("--label", "at most %d, are %d", protocol.MaxLabels, len(c.Labels))
	}
	for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
		flag := fmt.Sprintf("--label %q", k)
		if err := protocol.CheckName(k); err != nil {
			p.Add(flag, "the name %s", err)
		}
		if v := c.Labels[k]; v != "" {
			p.Check(flag, protocol.CheckName(v))
		}
	}
}

func (c *Config) checkExec(p *settings.Problems) {
	for _, e := range c.Env {
		if i := strings.IndexByte(e, '='); i < 1 {
			p.Add("--exec-env", "must be NAME=value, is %q", e)
		}
	}
	if len(c.Exec) > 0 {
		return
	}
	for _, f := range []struct {
		flag string
		set  bool
	}{
		{"--idle-timeout", c.IdleTimeout > 0}, {"--min-up-time", c.MinUpTime > 0}, {"--exec-env", len(c.Env) > 0}, {"--exec-dir", c.Dir != ""},
	} {
		if f.set {
			p.Add(f.flag, "needs --exec: without it the agent does not start the engine")
		}
	}
}
