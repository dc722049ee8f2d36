// SPDX-License-Identifier: Apache-2.0

package access

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnIdentityIsAKey(t *testing.T) {
	t.Parallel()
	var none *Keys
	k, err := none.Identify(Identity{ID: "user-1", Tenant: "acme", Models: []string{"llama"}, Scopes: []string{"eu"}})
	require.NoError(t, err)
	require.Equal(t, "user-1", k.ID)
	require.Equal(t, "user-1", k.Name)
	require.Equal(t, "acme", k.Tenant)
	require.Equal(t, []string{"eu"}, k.Scopes)
	require.False(t, k.RedirectNever)
	require.InDelta(t, 1.0, k.Share, 0)
	require.True(t, k.Allowed("llama"))
	require.False(t, k.Allowed("qwen"))
	require.False(t, k.Expired(noon))
	require.Equal(t, Result{OK: true, Remaining: Unlimited}, k.Charge("llama", 1, noon))

	k, err = none.Identify(Identity{Tenant: "acme"})
	require.NoError(t, err)
	require.Empty(t, k.ID)
	require.True(t, k.Allowed("llama"))
	k, err = none.Identify(Identity{Tenant: "acme", Models: []string{}, Scopes: []string{}})
	require.NoError(t, err)
	require.False(t, k.Allowed("llama"))
	require.True(t, k.RedirectNever, "no scopes are no site")
}

func TestABadIdentityIsRefused(t *testing.T) {
	t.Parallel()
	var none *Keys
	for _, bad := range []string{"", "a\x00b", "a\nb", "\xff", strings.Repeat("x", 257)} {
		for what, i := range map[string]Identity{
			"the tenant": {Tenant: bad, ID: "user-1"}, "the key id": {Tenant: "acme", ID: bad},
			"a model": {Tenant: "acme", Models: []string{bad}}, "a scope": {Tenant: "acme", Scopes: []string{bad}},
		} {
			if what == "the key id" && bad == "" {
				continue // it may have none
			}
			_, err := none.Identify(i)
			require.ErrorIs(t, err, ErrIdentity)
			require.ErrorContains(t, err, what+" must ")
		}
	}
}

// The id of a key in the file stands for that key's limits, and for nothing else of it.
func TestAnIdentityTakesTheQuotaOfTheKeyWithItsID(t *testing.T) {
	t.Parallel()
	keys := mustParse(t, "keys: [{id: a, tenant: other, models: [x], max_occupancy_share: 0.5, expires: 1990-01-01, quota: {requests_per_minute: 1}, key_hash: "+hashOf("one")+"}]")
	k, err := keys.Identify(Identity{ID: "a", Tenant: "acme"})
	require.NoError(t, err)
	require.Equal(t, "acme", k.Tenant)
	require.True(t, k.Allowed("y"))
	require.False(t, k.Expired(noon))
	require.InDelta(t, 0.5, k.Share, 0)
	require.True(t, k.Charge("y", 1, noon).OK)
	require.False(t, keys.ByID("a").Charge("y", 1, noon).OK, "it is one quota")
	other, err := keys.Identify(Identity{ID: "b", Tenant: "acme"})
	require.NoError(t, err)
	require.Equal(t, Unlimited, other.Charge("y", 1, noon).Remaining)
}

// Revoking a key does not end the requests of an identity with its id.
func TestAnIdentityWaitsApartFromAKey(t *testing.T) {
	t.Parallel()
	keys := mustParse(t, "keys: [{id: a, tenant: acme, expires: 2027-01-01, key_hash: "+hashOf("one")+"}]")
	empty := mustParse(t, "keys: []")
	key := keys.ByID("a")
	now, later := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC)
	require.True(t, keys.Valid(key.QueueKey(), now))
	require.False(t, keys.Valid(key.QueueKey(), later))
	require.False(t, empty.Valid(key.QueueKey(), now))
	lines := map[string]bool{key.QueueKey(): true, Anonymous().QueueKey(): true}
	for _, i := range []Identity{{ID: "a", Tenant: "acme"}, {ID: "a", Tenant: "other"}, {Tenant: "acme"}} {
		k, err := keys.Identify(i)
		require.NoError(t, err)
		require.True(t, empty.Valid(k.QueueKey(), later))
		lines[k.QueueKey()] = true
	}
	require.Len(t, lines, 5)
	require.Empty(t, Anonymous().QueueKey())
}

func TestTheNextExpiryIsTheFirstToCome(t *testing.T) {
	t.Parallel()
	keys := mustParse(t, "keys: [{tenant: acme, key_hash: "+hashOf("1")+"}, {tenant: acme, expires: 2027-01-03T00:00:00Z, key_hash: "+hashOf("2")+"}, {tenant: acme, expires: 2027-01-02T00:00:00Z, key_hash: "+hashOf("3")+"}]")
	day := func(n int) time.Time { return time.Date(2027, 1, n, 0, 0, 0, 0, time.UTC) }
	for now, want := range map[time.Time]time.Time{day(1): day(2), day(2): day(3), day(2).Add(1): day(3)} {
		next, ok := keys.NextExpiry(now)
		require.True(t, ok)
		require.Equal(t, want, next)
	}
	_, ok := keys.NextExpiry(day(3))
	require.False(t, ok)
}
