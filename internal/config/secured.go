// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
)

// secured refuses ports that anybody could use, and halves of what belongs
// together.
func (c *Serve) secured() []error {
	var errs []error
	goWith := func(flag, value, other, otherValue string) {
		if value != "" && otherValue == "" {
			errs = append(errs, fmt.Errorf("--%s is %s: goes with --%s", flag, value, other))
		}
	}
	goWith("keda-tls-cert-file", c.KEDATLSCertFile, "keda-tls-key-file", c.KEDATLSKeyFile)
	goWith("keda-tls-key-file", c.KEDATLSKeyFile, "keda-tls-cert-file", c.KEDATLSCertFile)
	goWith("webhook-cert-file", c.WebhookCertFile, "webhook-key-file", c.WebhookKeyFile)
	goWith("webhook-key-file", c.WebhookKeyFile, "webhook-cert-file", c.WebhookCertFile)
	goWith("agents-tls-cert-file", c.AgentsTLSCertFile, "agents-tls-key-file", c.AgentsTLSKeyFile)
	goWith("agents-tls-key-file", c.AgentsTLSKeyFile, "agents-tls-cert-file", c.AgentsTLSCertFile)
	goWith("agents-client-ca-file", c.AgentsClientCAFile, "agents-tls-cert-file", c.AgentsTLSCertFile)
	if c.AdminTokenFile == "" && !local(c.AdminListen) {
		errs = append(errs, exposed("admin-listen", c.AdminListen, "set --admin-token-file"))
	}
	if local(c.AgentsListen) {
		return errs
	}
	if c.AgentsTLSCertFile == "" {
		errs = append(errs, exposed("agents-listen", c.AgentsListen, "set --agents-tls-cert-file and --agents-tls-key-file"))
	}
	if c.AgentsTokenFile == "" && c.AgentsClientCAFile == "" {
		errs = append(errs, exposed("agents-listen", c.AgentsListen, "set --agents-token-file or --agents-client-ca-file"))
	}
	return errs
}

func exposed(flag, value, rule string) error {
	return fmt.Errorf("--%s is %s, which others can reach: %s, or listen on a loopback address or a unix socket", flag, value, rule)
}

// local says whether an address can only be reached from this machine.
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
