// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// checkExposure finds flags whose required flags are missing, and ports that other machines
// could use without authentication.
func (c *Serve) checkExposure(r *rules) {
	values := map[string]string{}
	for _, s := range c.settings() {
		if s.text != nil {
			values[s.name] = *s.text
		}
	}
	for _, s := range c.settings() {
		for _, other := range s.requires {
			r.require(values[s.name] == "" || values[other] != "", s.name, values[s.name], "goes with --"+other)
		}
	}
	c.checkEnvoy(r)
	if c.AdminTokenFile == "" && !isLocal(c.AdminListen) {
		r.exposed("admin-listen", c.AdminListen, "set --admin-token-file")
	}
	if isLocal(c.AgentsListen) {
		return
	}
	if c.AgentsTLSCertFile == "" {
		r.exposed("agents-listen", c.AgentsListen, "set --agents-tls-cert-file and --agents-tls-key-file")
	}
	if c.AgentsTokenFile == "" && c.AgentsClientCAFile == "" {
		r.exposed("agents-listen", c.AgentsListen, "set --agents-token-file or --agents-client-ca-file")
	}
}

// checkEnvoy finds connections between Envoy and the router that other machines could use. A
// client of --extproc-listen can identify the caller in place of a key, and a client of
// --relay can have requests sent to any address.
func (c *Serve) checkEnvoy(r *rules) {
	r.require(len(c.ExtProcClientNames) == 0 || c.ExtProcClientCAFile != "", "extproc-client-names", strings.Join(c.ExtProcClientNames, ","), "goes with --extproc-client-ca-file")
	if c.ExtProcInsecure {
		r.require(c.ExtProcTLSCertFile == "", "extproc-insecure", true, "does not go with --extproc-tls-cert-file")
		return
	}
	if c.ExtProcTLSCertFile == "" && !isLocal(c.ExtProcListen) {
		r.exposed("extproc-listen", c.ExtProcListen,
			"set --extproc-tls-cert-file, --extproc-tls-key-file and --extproc-client-ca-file (or --extproc-insecure, see its help)")
	}
	if at := c.Gateway(); at != nil {
		local := at.Scheme == "https" || isLocal(withPort(at.Host))
		r.require(local, "relay", c.Relay, "sends callers' keys to another machine unencrypted: use https, or set --extproc-insecure if no other machine can intercept the connection")
		return
	}
	if !isLocal(c.Relay) {
		r.exposed("relay", c.Relay, "set --extproc-insecure if no other machine can intercept the connection (see its help)")
	}
}

// exposed adds a problem of an address that other machines can reach.
func (r *rules) exposed(flag, value, advice string) {
	r.Add(fmt.Sprintf("--%s is %s, which others can reach", flag, value), "%s, or use a loopback address or a unix socket", advice)
}

// isLocal reports whether an address can be reached only from this machine.
func isLocal(listen string) bool {
	network, address := Address(listen)
	if network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // not an address, which another rule reports
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
