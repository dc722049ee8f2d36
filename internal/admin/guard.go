// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// guardBrowsers returns a handler that refuses calls that a web page could make a browser
// send: calls from pages of other sites, and, if no token protects the API, calls to a host
// name that an attacker's DNS resolves to this machine.
func (d Deps) guardBrowsers(h http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, "cross_origin", "the admin API takes no calls from pages of other sites")
	}))
	h = cross.Handler(h)
	if len(d.Tokens) > 0 {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !overUnix(r) && !loopbackHost(r.Host) {
			fail(w, http.StatusForbidden, "host_not_allowed",
				"without --admin-token-file the admin API is called as localhost or by a loopback address")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// fromElsewhere reports whether a page of another site made a browser send the request.
func fromElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none"
}

// overUnix reports whether a request came over a unix socket. Browsers cannot connect to one.
func overUnix(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr.Network() == "unix"
}

// loopbackHost reports whether a Host header names this machine without DNS. An empty header
// is accepted: every browser sends it, and some health checks do not.
func loopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
