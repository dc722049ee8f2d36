// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
)

// checkSecured refuses ports that anybody could use, and settings without those that
// they need.
func (c *Serve) checkSecured(r *rules) {
	values := map[string]string{}
	for _, s := range c.settings() {
		if s.text != nil {
			values[s.name] = *s.text
		}
	}
	for _, s := range c.settings() {
		for _, other := range s.goesWith {
			r.require(values[s.name] == "" || values[other] != "", s.name, values[s.name], "goes with --"+other)
		}
	}
	c.checkEnvoy(r)
	if c.AdminTokenFile == "" && !local(c.AdminListen) {
		r.exposed("admin-listen", c.AdminListen, "set --admin-token-file")
	}
	if local(c.AgentsListen) {
		return
	}
	if c.AgentsTLSCertFile == "" {
		r.exposed("agents-listen", c.AgentsListen, "set --agents-tls-cert-file and --agents-tls-key-file")
	}
	if c.AgentsTokenFile == "" && c.AgentsClientCAFile == "" {
		r.exposed("agents-listen", c.AgentsListen, "set --agents-token-file or --agents-client-ca-file")
	}
}

// checkEnvoy refuses connections between Envoy and the router that others could use: on
// one of them Envoy names the caller in place of a key, on the other it sends requests
// to any address.
func (c *Serve) checkEnvoy(r *rules) {
	if c.ExtProcInsecure {
		r.require(c.ExtProcTLSCertFile == "", "extproc-insecure", true, "does not go with --extproc-tls-cert-file")
		return
	}
	if c.ExtProcTLSCertFile == "" && !local(c.ExtProcListen) {
		r.exposed("extproc-listen", c.ExtProcListen,
			"set --extproc-tls-cert-file, --extproc-tls-key-file and --extproc-client-ca-file (or --extproc-insecure, see its help)")
	}
	if !local(c.Relay) {
		r.exposed("relay", c.Relay, "set --extproc-insecure if nobody else is on the way there (see its help)")
	}
}

// exposed adds the problem of an address that others can reach.
func (r *rules) exposed(flag, value, advice string) {
	r.Add(fmt.Sprintf("--%s is %s, which others can reach", flag, value), "%s, or use a loopback address or a unix socket", advice)
}

// local reports whether an address can only be reached from this machine.
func local(listen string) bool {
	network, address := Address(listen)
	if network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // another rule refuses what is no address
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
