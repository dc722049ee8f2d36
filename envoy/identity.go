// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
)

// IdentityPath parses the place where a filter before ext_proc puts the identity of the
// caller: a namespace of dynamic metadata, followed by keys that lead deeper, each
// after a slash.
func IdentityPath(s string) ([]string, error) {
	path := strings.Split(s, "/")
	switch {
	case slices.Contains(path, "") || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return nil, fmt.Errorf("must be a namespace of dynamic metadata, and keys below it after a slash, is %q", s)
	case path[0] == Namespace:
		return nil, errors.New("must not be " + Namespace + ", which is the router's own")
	}
	return path, nil
}

// forwardedNamespaces returns the metadata namespaces that the ext_proc filter of a
// lane sends. The rehold lane keeps what the edge already determined.
func (r *renderer) forwardedNamespaces(lane string) *extprocv3.MetadataOptions_MetadataNamespaces {
	if r.config.IdentityMetadata == "" || lane == LaneRehold {
		return nil
	}
	namespace, _, _ := strings.Cut(r.config.IdentityMetadata, "/")
	return &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{namespace}}
}

// identity checks that the filter sends the namespace with the identity of the caller.
func (c *checker) identity(path string, p *extprocv3.ExternalProcessor) {
	if lane(p) == LaneRehold {
		return
	}
	namespace, _, _ := strings.Cut(c.IdentityMetadata, "/")
	sent := p.GetMetadataOptions().GetForwardingNamespaces().GetUntyped()
	if namespace != "" && !slices.Contains(sent, namespace) {
		c.bad(path+": metadata_options.forwarding_namespaces.untyped", "lacks %s: no request would have an identity", namespace)
	}
}
