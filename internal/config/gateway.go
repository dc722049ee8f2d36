// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/url"
	"strings"

	"github.com/holdgate/holdgate/internal/policy"
)

// Gateway returns the URL of --relay if it is that of a gateway, nil if it is the relay lane.
func (c *Serve) Gateway() *url.URL {
	if !strings.HasPrefix(c.Relay, "http://") && !strings.HasPrefix(c.Relay, "https://") {
		return nil
	}
	u, err := url.Parse(c.Relay)
	if err != nil || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil
	}
	return u
}

// checkGateway checks that a request that comes back through a gateway finds a process that
// accepts its ticket.
func (c *Serve) checkGateway(r *rules) {
	at := c.Gateway()
	r.require(c.RelayCAFile == "" || at != nil && at.Scheme == "https", "relay-ca-file", c.RelayCAFile, "needs an https --relay")
	if at == nil || c.HopSecretFile != "" {
		return
	}
	const needs = "needs --hop-secret-file, since a held request that comes back through the gateway may reach another "
	r.require(c.Shared == "", "relay", c.Relay, needs+"router of --shared")
	r.require(!c.Takeover, "relay", c.Relay, needs+"process after a --takeover")
}

func validRelay(s string) string {
	if (&Serve{Relay: s}).Gateway() != nil {
		return ""
	}
	ok := !strings.Contains(s, "://") || strings.HasPrefix(s, "unix://")
	return messageUnless(ok && validAddress(s) == "", "must be host:port, unix:///path, http://host:port or https://host:port")
}

func validDestination(s string) string {
	if err := policy.CheckDestination(s); err != nil {
		return err.Error()
	}
	return ""
}

func validFallbacks(n int) string {
	return messageUnless(n >= 0 && n <= 2, "must be from 0 to 2")
}

// withPort returns the host of a URL with a port.
func withPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "80")
}
