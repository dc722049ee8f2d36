// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
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
	goWith("extproc-tls-cert-file", c.ExtProcTLSCertFile, "extproc-tls-key-file", c.ExtProcTLSKeyFile)
	goWith("extproc-tls-cert-file", c.ExtProcTLSCertFile, "extproc-client-ca-file", c.ExtProcClientCAFile)
	goWith("extproc-tls-key-file", c.ExtProcTLSKeyFile, "extproc-tls-cert-file", c.ExtProcTLSCertFile)
	goWith("extproc-client-ca-file", c.ExtProcClientCAFile, "extproc-tls-cert-file", c.ExtProcTLSCertFile)
	errs = append(errs, c.securedEnvoy()...)
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

// securedEnvoy refuses ways between Envoy and the router that others could use: on one
// of them the word of Envoy stands for a caller's key, on the other requests go to any
// address.
func (c *Serve) securedEnvoy() []error {
	var errs []error
	if c.ExtProcInsecure {
		if c.ExtProcTLSCertFile != "" {
			errs = append(errs, errors.New("--extproc-insecure is true: does not go with --extproc-tls-cert-file"))
		}
		return errs
	}
	if c.ExtProcTLSCertFile == "" && !local(c.ExtProcListen) {
		errs = append(errs, exposed("extproc-listen", c.ExtProcListen,
			"set --extproc-tls-cert-file, --extproc-tls-key-file and --extproc-client-ca-file (or --extproc-insecure, see its help)"))
	}
	if !local(c.Relay) {
		errs = append(errs, exposed("relay", c.Relay, "set --extproc-insecure if nobody else is on the way there (see its help)"))
	}
	return errs
}

func exposed(flag, value, rule string) error {
	return fmt.Errorf("--%s is %s, which others can reach: %s, or use a loopback address or a unix socket", flag, value, rule)
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
