// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/holdgate/holdgate/internal/unixsocket"
)

// Address splits an address flag into what net.Listen and net.Dial take.
func Address(s string) (network, address string) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		return "unix", path
	}
	return "tcp", s
}

// sockets finds unix sockets whose paths are too long.
func (c *Serve) sockets() (errs []error) {
	for _, l := range []struct{ flag, value string }{
		{"extproc-listen", c.ExtProcListen},
		{"agents-listen", c.AgentsListen},
		{"relay", c.Relay},
	} {
		if network, address := Address(l.value); network == "unix" {
			if err := unixsocket.CheckPath(address); err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", l.flag, err))
			}
		}
	}
	return errs
}

// shared finds addresses that two flags name.
func (c *Serve) shared() []error {
	var errs []error
	first := map[string]string{}
	for _, l := range []struct{ flag, value string }{
		{"extproc-listen", c.ExtProcListen},
		{"agents-listen", c.AgentsListen},
		{"admin-listen", c.AdminListen},
		{"relay", c.Relay},
		{"keda-listen", c.KEDAListen},
	} {
		network, address := Address(l.value)
		if network == "unix" {
			address = filepath.Clean(address)
		}
		if address == "" || network == "tcp" && strings.HasSuffix(address, ":0") {
			continue // no address, or one that the system chooses
		}
		if other, there := first[address]; there {
			errs = append(errs, fmt.Errorf("--%s is %s: must not be the address of --%s as well", l.flag, l.value, other))
			continue
		}
		first[address] = l.flag
	}
	return errs
}

// validOrigin says whether a browser could send an origin like this one.
func validOrigin(s string) bool {
	if s == "*" {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && u.Hostname() != "" && s == u.Scheme+"://"+strings.ToLower(u.Host)
}
