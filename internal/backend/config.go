// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/sitemap"
)

// Config has the settings of one backend. Its BackendURL may be https, and may have a path
// that goes in front of the paths of requests.
type Config struct {
	agent.Config

	// Name is unique among the backends.
	Name string
	// SNI is the name in the certificate of an https backend; empty for the name in Host.
	SNI string
	// CAFile is the file with the authorities of that certificate; empty for the system's.
	CAFile string
	// NotTaken are the statuses with which a load balancer in front of several engines
	// answers a request that none of them accepted.
	NotTaken []int
	// MaxWait is how long requests are held; 0 means the router's default.
	MaxWait time.Duration
	// Wake is the webhook that wakes the backend; nil for none.
	Wake *sitemap.Wake
	// APIKeyFile is the file with the engine's API key; empty for none.
	APIKeyFile string

	keyLine, caLine int // the lines of APIKeyFile and CAFile in the file
}

// Secure reports whether the connection to the backend uses TLS.
func (c *Config) Secure() bool { return strings.HasPrefix(c.BackendURL, "https://") }

// CAs returns the files with the authorities of https backends, without duplicates, for
// Envoy's bootstrap.
func CAs(configs []Config) (cas []string) {
	for i := range configs {
		if ca := cmp.Or(configs[i].CAFile, envoy.SystemCA); configs[i].Secure() && !slices.Contains(cas, ca) {
			cas = append(cas, ca)
		}
	}
	return cas
}
