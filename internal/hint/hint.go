// SPDX-License-Identifier: Apache-2.0

// Package hint reads to which addresses a gateway restricts where a request may be sent: the
// subset hint of the endpoint picker protocol.
package hint

import (
	"net/netip"
	"slices"
	"strings"
)

// MaxAddresses is how many addresses of a hint count. A request that waits keeps its hint, 32
// bytes for each address. Further ones are ignored, so that no request goes to an address that the
// gateway did not name.
const MaxAddresses = 1000

// Hint is a set of addresses. A nil *Hint restricts nothing.
type Hint struct {
	addresses []netip.AddrPort // sorted; port 0 stands for any port
}

// Add adds the addresses in text: ip:port or ip, IPv6 in brackets or, without a port, without
// them, and several separated by commas. What is not an address, such as a name, is not added.
func (h *Hint) Add(text string) {
	for one := range strings.SplitSeq(text, ",") {
		if len(h.addresses) >= MaxAddresses {
			return
		}
		if a, ok := parse(strings.TrimSpace(one)); ok {
			at, known := slices.BinarySearchFunc(h.addresses, a, netip.AddrPort.Compare)
			if !known {
				h.addresses = slices.Insert(h.addresses, at, a)
			}
		}
	}
}

// parse returns one address; its port is 0 where text has none.
func parse(text string) (netip.AddrPort, bool) {
	if a, err := netip.ParseAddrPort(text); err == nil {
		return plain(a), true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return plain(netip.AddrPortFrom(ip, 0)), err == nil
}

// plain returns an address in the form in which addresses are compared.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// Fits reports whether the hint has an address of the form ip:port.
func (h *Hint) Fits(address string) bool {
	if h == nil {
		return true
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	a = plain(a)
	return h.has(a) || h.has(netip.AddrPortFrom(a.Addr(), 0))
}

func (h *Hint) has(a netip.AddrPort) bool {
	_, known := slices.BinarySearchFunc(h.addresses, a, netip.AddrPort.Compare)
	return known
}
