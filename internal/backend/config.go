// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"time"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/sitemap"
)

// Config is a backend as the configuration has it.
type Config struct {
	// Name is unique among the backends.
	Name string
	// URL is http://host:port; the host may be a name.
	URL        string
	Engine     string
	HealthPath string // empty: the engine's own
	// Models are empty where the engine is to be asked for them.
	Models []string
	// Kinds are empty where the engine's usual one is meant.
	Kinds  []sitemap.Kind
	Slots  int
	Region string
	Labels map[string]string
	// MaxWait is how long requests are held; 0 stands for the router's default.
	MaxWait time.Duration
	// Wake is the webhook that wakes the backend, nil without one.
	Wake *sitemap.Wake
	// APIKeyFile has the key that the engine wants; empty without one.
	APIKeyFile string

	keyLine int // of the file, where APIKeyFile stands
}

// kinds are those that the backend is for when it is not asked.
func (c *Config) kinds() []sitemap.Kind {
	if len(c.Kinds) > 0 {
		return c.Kinds
	}
	usual, err := agent.KindsOf(c.Engine)
	if err != nil {
		return nil // Read has said so
	}
	return usual[:1]
}
