// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/target"
)

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"127.0.0.1:80":         "",
		"[2001:db8::1]:80":     "",
		"[::ffff:10.0.0.1]:80": "",
		"10.0.0.1:0":           "must have a port above 0",
		"0.0.0.0:80":           "must name an address; only 0.0.0.0 may stand for the one that the agent connects from",
		"[::]:80":              "must name an address; only 0.0.0.0 may stand for the one that the agent connects from",
		"224.0.0.1:80":         "must not be a multicast or broadcast address",
		"255.255.255.255:80":   "must not be a multicast or broadcast address",
		"169.254.0.1:80":       "must not be a link-local address",
		"[fe80::1%eth0]:80":    "must not have a zone",
	} {
		err := CheckAddress(netip.MustParseAddrPort(address))
		if want == "" {
			require.NoError(t, err, address)
			continue
		}
		require.EqualError(t, err, want, address)
	}
	require.Error(t, CheckAddress(netip.AddrPort{}))
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"llama-3.1":              "",
		strings.Repeat("n", 256): "",
		"":                       "is required",
		strings.Repeat("n", 257): "must have at most 256 bytes, has 257",
		"a\xff":                  "must be valid UTF-8",
		"a\nb":                   "must not contain control characters",
	} {
		err := CheckName(name)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, want)
	}
}

func TestParseKind(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]target.Kind{
		"chat": target.Chat, "llm": target.Chat, "embedding": target.Embedding, "rerank": target.Rerank, "reranker": target.Rerank,
	} {
		k, err := ParseKind(name)
		require.NoError(t, err)
		require.Equal(t, want, k)
	}
	_, err := ParseKind("vision")
	require.EqualError(t, err, `"vision" is not a capability: use llm, embedding or reranker`)
}
