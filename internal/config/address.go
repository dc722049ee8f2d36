// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/holdgate/holdgate/internal/unixsocket"
)

// Address splits the address of a flag into the network and address arguments of net.Listen
// and net.Dial.
func Address(s string) (network, address string) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		return "unix", path
	}
	return "tcp", s
}

// checkAddresses checks that the paths of unix sockets are not too long, and that no two
// flags have the same address.
func (c *Serve) checkAddresses(r *rules) {
	first := map[string]string{}
	for _, s := range c.settings() {
		if !s.listens {
			continue
		}
		network, address := Address(*s.text)
		if network == "unix" {
			r.Check("--"+s.name, unixsocket.CheckPath(address))
			address = filepath.Clean(address)
		}
		if address == "" || network == "tcp" && strings.HasSuffix(address, ":0") {
			continue // no address, or one that the system chooses
		}
		if other, there := first[address]; there {
			r.check(s.name, *s.text, "must not be the address of --"+other+" as well")
			continue
		}
		first[address] = s.name
	}
}

func validAddress(s string) string {
	network, address := Address(s)
	return messageUnless(address != "" && (network == "unix" || strings.Contains(address, ":")), "must be host:port or unix:///path")
}

func validNetwork(s string) string {
	_, err := netip.ParsePrefix(s)
	return messageUnless(err == nil, "must be a network such as 10.0.0.0/8")
}

// validOrigin checks that s is an origin as browsers send it, or *.
func validOrigin(s string) string {
	u, err := url.Parse(s)
	ok := s == "*" || err == nil && u.Scheme != "" && u.Hostname() != "" && s == u.Scheme+"://"+strings.ToLower(u.Host)
	return messageUnless(ok, "must be scheme://host or scheme://host:port, as browsers write it, or *")
}

func validEnvoyAdmin(s string) string {
	u, err := url.Parse(s)
	var ok bool
	switch {
	case err != nil || u.RawQuery != "" || u.User != nil:
	case u.Scheme == "unix":
		ok = u.Host == "" && len(u.Path) > 1
	default:
		ok = u.Scheme == "http" && u.Host != "" && strings.Trim(u.Path, "/") == ""
	}
	return messageUnless(ok, "must be http://host:port or unix:///path")
}
