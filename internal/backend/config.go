// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// Config is a backend as the configuration has it.
type Config struct {
	// Name is unique among the backends.
	Name string
	// URL is http or https, a host, which may be a name, a port and a path that goes
	// before those of requests.
	URL string
	// Host is what requests are for; empty: the host of URL.
	Host string
	// SNI is the name in the certificate of an https backend where that is not Host.
	SNI string
	// CAFile has the authorities of that certificate; empty: those of the machine.
	CAFile string
	// Pool says that URL is of something in front of several engines.
	Pool bool
	// NotTaken are the statuses with which that says that no engine took the request.
	NotTaken []int
	// HealthModel says that it is healthy only while it lists its models.
	HealthModel bool

	Engine     string
	HealthPath string // empty: the engine's own
	// Models are empty where the engine is to be asked for them.
	Models []string
	// Kinds are empty where the engine's usual one is meant.
	Kinds  []target.Kind
	Slots  int
	Region string
	Labels map[string]string
	// MaxWait is how long requests are held; 0 stands for the router's default.
	MaxWait time.Duration
	// Wake is the webhook that wakes the backend, nil without one.
	Wake *sitemap.Wake
	// APIKeyFile has the key that the engine wants; empty without one.
	APIKeyFile string

	keyLine, caLine int // of the file, where APIKeyFile and CAFile stand
}

// Secure says whether the backend is spoken to over TLS.
func (c *Config) Secure() bool { return strings.HasPrefix(c.URL, "https://") }

// CAs are the authorities by which the https backends are known, as Envoy's bootstrap
// needs them.
func CAs(configs []Config) (cas []string) {
	for i := range configs {
		if ca := cmp.Or(configs[i].CAFile, envoy.SystemCA); configs[i].Secure() && !slices.Contains(cas, ca) {
			cas = append(cas, ca)
		}
	}
	return cas
}

// kinds are those that the backend is for when it is not asked.
func (c *Config) kinds() []target.Kind {
	if len(c.Kinds) > 0 {
		return c.Kinds
	}
	engine, err := engines.Find(c.Engine)
	if err != nil {
		return nil // Read has said so
	}
	return engine.Kinds[:1]
}
