// SPDX-License-Identifier: Apache-2.0

package access

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzParse: no input panics; what is accepted can be used; what is not has its
// reasons, each on one clean and short line.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "keys: []", "keys: [{}]", "keys: [*a]", "? !a b\n: c", "keys: []\n---\nkeys: []", "\xef\xbb\xbfkeys: []", "\xff\xfe",
		one("id: a", "models: [x, y]", "scopes: [eu]", "redirect: never", "max_occupancy_share: 0.5", "expires: 2027-01-01",
			"quota: {requests_per_minute: 600, per_model: {x: {requests_per_minute_per_replica: 10}}}"),
		one("id: &x a", "name: *x"), one("<<: {id: a}"), one("id: !!binary YQ=="), one("max_occupancy_share: .inf"),
		one("quota: {requests_per_minute: 0x10}", "expires: 2027-01-01T00:00:00Z"),
		"keys: [{tenant: a, key_hash: " + strings.Repeat("9", 64) + "}, {tenant: b, key_hash: " + strings.Repeat("9", 63) + "8}]",
		strings.Repeat("[", 100), "keys: " + strings.Repeat("{a: ", 100),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := Parse(data)
		if err != nil {
			require.Nil(t, k)
			var problems Problems
			require.ErrorAs(t, err, &problems)
			require.NotEmpty(t, problems)
			for _, p := range problems {
				require.NotEmpty(t, p.Message)
				require.True(t, utf8.ValidString(p.String()), "%q", p)
				require.NotContains(t, p.String(), "\n")
				require.Less(t, len(p.String()), 1000)
			}
			return
		}
		again, err := Parse(data)
		require.NoError(t, err)
		require.Len(t, again.byID, len(k.byID))
		again.takeOver(k, noon)
		require.Len(t, k.byHash, len(k.byID))
		for id, key := range k.byID {
			require.Equal(t, id, key.ID)
			for _, name := range []string{key.ID, key.Name, key.Tenant} {
				require.Empty(t, nameProblem(name))
			}
			require.Contains(t, k.Tenants(), key.Tenant)
			require.Same(t, key, k.Renew(key))
			require.Greater(t, key.Share, 0.0)
			require.LessOrEqual(t, key.Share, 1.0)
			for model := range key.models {
				require.True(t, key.Allowed(model))
				require.True(t, key.Charge(model, 1, noon).OK || key.quota != nil)
			}
		}
	})
}
