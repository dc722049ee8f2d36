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

// Config has the settings of one backend. Its BackendURL is http or https, a host, which
// may be a name, a port, and a path that goes before those of requests.
type Config struct {
	agent.Config

	// Name is unique among the backends.
	Name string
	// SNI is the name in the certificate of an https backend if that is not Host.
	SNI string
	// CAFile has the authorities of that certificate; empty: those of the machine.
	CAFile string
	// NotTaken are the statuses with which what is in front of several engines says
	// that none of them took the request.
	NotTaken []int
	// MaxWait is how long requests are held; 0 stands for the router's default.
	MaxWait time.Duration
	// Wake is the webhook that wakes the backend, nil without one.
	Wake *sitemap.Wake
	// APIKeyFile has the key that the engine wants; empty without one.
	APIKeyFile string

	keyLine, caLine int // the lines of APIKeyFile and CAFile in the file
}

// Secure reports whether the connection to the backend uses TLS.
func (c *Config) Secure() bool { return strings.HasPrefix(c.BackendURL, "https://") }

// CAs returns the authorities of the certificates of https backends, as Envoy's bootstrap
// needs them.
func CAs(configs []Config) (cas []string) {
	for i := range configs {
		if ca := cmp.Or(configs[i].CAFile, envoy.SystemCA); configs[i].Secure() && !slices.Contains(cas, ca) {
			cas = append(cas, ca)
		}
	}
	return cas
}
