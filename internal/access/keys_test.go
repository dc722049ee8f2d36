// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// threeKeys are alice, bob, and eve who has expired.
func threeKeys(t testing.TB) *Keys {
	t.Helper()
	return mustParse(t, fmt.Sprintf(`keys:
- {id: a, tenant: one, key_hash: %s}
- {id: b, tenant: two, key_hash: %s}
- {id: old, tenant: one, expires: 2026-01-01, key_hash: %s}
`, hashOf("alice"), hashOf("bob"), hashOf("eve")))
}

func TestLookup(t *testing.T) {
	t.Parallel()
	k := threeKeys(t)
	for _, c := range []struct{ authorization, apiKey, want string }{
		{"", "", ""},
		{"Bearer alice", "", "a"},
		{"bearer alice", "", "a"},
		{"BEARER   bob ", "", "b"},
		{"", "bob", "b"},
		{"", " bob\t", "b"},
		{"Bearer alice", "alice", "a"},
		{"Bearer alice", "bob", "a"},
		{"Bearer alice", "nobody", "a"},
		{"Bearer nobody", "bob", "b"},
		{"Bearer eve", "bob", "b"},
		{"Basic YTpi", "bob", "b"},
		{"Bearer", "bob", "b"},
		{"Bearer eve", "", ""},
		{"", "eve", ""},
		{"Bearer nobody", "", ""},
		{"Bearer nobody", "nobody", ""},
		{"alice", "", ""},
		{"Basic alice", "", ""},
		{"Beareralice", "", ""},
		{"Bearer Alice", "", ""},
		{"Bearer alice bob", "", ""},
		{"Bearer alice, Bearer bob", "", ""},
		{"", "Bearer alice", ""},
		{"Bearer " + hashOf("alice"), "", ""},
		{"Bearer  ", " ", ""},
		{"Bearer " + strings.Repeat("x", 1<<20), "", ""},
	} {
		key, ok := k.Lookup(c.authorization, c.apiKey, noon)
		require.Equal(t, c.want != "", ok, "%+v", c)
		if !ok {
			require.Nil(t, key, "%+v", c)
			continue
		}
		require.Equal(t, c.want, key.ID, "%+v", c)
		require.Same(t, k.ByID(c.want), key)
	}
	key, ok := k.Lookup("Bearer eve", "", time.Date(2026, 1, 1, 23, 59, 59, 0, time.UTC))
	require.True(t, ok)
	require.Equal(t, "old", key.ID)
	require.Equal(t, []string{"one", "two"}, k.Tenants())
	require.Nil(t, k.ByID("c"))
	require.NotNil(t, k.ByID("old"), "it is there, though expired")
}

func TestTheLongestKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxKey)
	k := mustParse(t, "keys: [{tenant: a, key_hash: "+hashOf(long)+"}, {tenant: a, key_hash: "+hashOf(long+"x")+"}]")
	_, ok := k.Lookup("", long, noon)
	require.True(t, ok)
	_, ok = k.Lookup("", long+"x", noon)
	require.False(t, ok)
}

func TestRenew(t *testing.T) {
	t.Parallel()
	before := mustParse(t, one("id: a"))
	key := before.ByID("a")
	require.Same(t, key, before.Renew(key))

	renamed := mustParse(t, one("id: b", "models: [x]"))
	require.Equal(t, "b", renamed.Renew(key).ID)
	require.False(t, renamed.Renew(key).Allowed("y"))

	replaced := mustParse(t, "keys: [{id: a, tenant: acme, key_hash: "+hashOf("another")+"}]")
	require.Nil(t, replaced.Renew(key), "the same id does not save a key that was replaced")

	require.Same(t, Anonymous(), replaced.Renew(Anonymous()))
	other, err := replaced.Identify(Identity{ID: "a", Tenant: "acme"})
	require.NoError(t, err)
	require.Same(t, other, replaced.Renew(other), "it is not of the file")
}

func TestAnonymousMayDoEverything(t *testing.T) {
	t.Parallel()
	k := Anonymous()
	require.Same(t, k, Anonymous())
	require.Empty(t, k.ID)
	require.Equal(t, "default", k.Tenant)
	require.InDelta(t, 1.0, k.Share, 0)
	require.True(t, k.Allowed("anything"))
	require.False(t, k.Expired(noon))
	require.True(t, k.Charge("anything", 0, noon).OK)
}
