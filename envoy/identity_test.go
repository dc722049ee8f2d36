// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnIdentityHasANamespaceAndKeys(t *testing.T) {
	t.Parallel()
	for s, want := range map[string][]string{
		"auth": {"auth"}, "envoy.filters.http.jwt_authn/claims": {"envoy.filters.http.jwt_authn", "claims"}, "a/b/c": {"a", "b", "c"},
		"": nil, "/": nil, "a/": nil, "/a": nil, "a//b": nil, "a\n": nil, "\xff": nil, "holdgate": nil, "holdgate/stream": nil,
	} {
		path, err := IdentityPath(s)
		require.Equal(t, want, path, s)
		require.Equal(t, want == nil, err != nil, s)
	}
	_, err := Render(Config{EdgeListen: "127.0.0.1:0", LanesDir: "/run/hg", IdentityMetadata: "holdgate"})
	require.EqualError(t, err, "IdentityMetadata: must not be holdgate, which is the router's own")
}

func TestAnIdentityThatIsNotSentIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ render, check, want string }{
		"sent":      {"auth/claims", "auth/claims", ""},
		"not asked": {"auth", "", ""},
		"another":   {"other", "auth", "error: listener edge: filter envoy.filters.http.ext_proc: metadata_options.forwarding_namespaces.untyped: lacks auth: no request would have an identity"},
	} {
		b, err := Render(Config{EdgeListen: "127.0.0.1:0", LanesDir: "/run/hg", IdentityMetadata: c.render})
		require.NoError(t, err)
		found := Check(SetupOf(b), CheckOptions{Budget: time.Minute, IdentityMetadata: c.check}).Findings
		if c.want == "" {
			require.Empty(t, found, name)
			continue
		}
		require.Len(t, found, 1, "the rehold lane needs none")
		require.Equal(t, c.want, found[0].String())
	}
}
