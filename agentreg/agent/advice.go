// SPDX-License-Identifier: Apache-2.0

package agent

import "strings"

// advices lists what to change if a connection fails with an error that contains text.
var advices = []struct{ text, advice string }{
	{"connect: connection refused", "is holdgate serve running there? --router names its --agents-listen"},
	{"first record does not look like a TLS handshake", "the router speaks no TLS: leave out --tls and --tls-ca-file, or give the router --agents-tls-cert-file"},
	{"looked like an HTTP/1.1 header", "is --router the address of the router's --agents-listen, and not of its --admin-listen?"},
	{"signed by unknown authority", "--tls-ca-file must have the authority that signed the router's certificate (--agents-tls-cert-file)"},
	{"remote error: tls:", "the router does not accept the agent: give it a --tls-cert-file that an authority of the router's --agents-client-ca-file has signed"},
	{"has expired or is not yet valid", "renew the router's certificate (--agents-tls-cert-file)"},
	{"x509: cannot validate certificate for", "give --router a name that is in the router's certificate, or --tls-server-name"},
	{"x509: certificate is valid for", "give --router a name that is in the router's certificate, or --tls-server-name"},
}

// closings are parts of the errors of connections that the router closed at their start.
var closings = []string{"server preface: EOF", "connection reset by peer", "broken pipe"}

// advice returns what to change so that a router can be connected to, empty if that is not
// known. The problem is the text of the connection's error.
func (t TLS) advice(problem string) string {
	for _, a := range advices {
		if strings.Contains(problem, a.text) {
			return a.advice
		}
	}
	for _, c := range closings {
		switch {
		case !strings.Contains(problem, c):
		case !t.enabled():
			return "the router may want TLS: --tls-ca-file, or --tls"
		case t.CertFile == "":
			return "the router may want a certificate: --tls-cert-file and --tls-key-file"
		default:
			return "the router may not accept --tls-cert-file: an authority of its --agents-client-ca-file must have signed it"
		}
	}
	return ""
}
