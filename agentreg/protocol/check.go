// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdgate/holdgate/internal/target"
)

// ParseKind parses the name of a kind as agents spell it: a kind, or one of the capabilities
// llm and reranker.
func ParseKind(s string) (target.Kind, error) {
	switch s {
	case "llm":
		return target.Chat, nil
	case "reranker":
		return target.Rerank, nil
	}
	k, err := target.ParseKind(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a capability: use llm, embedding or reranker", s)
	}
	return k, nil
}

// CheckName returns an error if s is not valid as the name of an agent, a model, an engine
// or a region.
func CheckName(s string) error {
	switch {
	case s == "":
		return errors.New("is required")
	case len(s) > MaxNameBytes:
		return fmt.Errorf("must have at most %d bytes, has %d", MaxNameBytes, len(s))
	case !utf8.ValidString(s):
		return errors.New("must be valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("must not contain control characters")
	}
	return nil
}

// CheckAddress returns an error if a is not valid as the address of an engine.
func CheckAddress(a netip.AddrPort) error {
	ip := a.Addr().Unmap()
	switch {
	case a.Addr().Zone() != "":
		return errors.New("must not have a zone")
	case a.Port() == 0:
		return errors.New("must have a port above 0")
	case !ip.IsValid() || ip.IsUnspecified():
		return errors.New("must name an address; only 0.0.0.0 may stand for the one that the agent connects from")
	case ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("must not be a multicast or broadcast address")
	case ip.IsLinkLocalUnicast():
		return errors.New("must not be a link-local address")
	}
	return nil
}
