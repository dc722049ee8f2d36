// SPDX-License-Identifier: Apache-2.0

package access

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewKeysAreAllDifferentAndOfOneForm(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^hg-[0-9A-Za-z]{43}$`)
	seen := map[string]bool{}
	for range 2000 { // one in 256 begins with a zero
		key := NewKey()
		require.Regexp(t, form, key)
		require.False(t, seen[key])
		seen[key] = true
	}
}

func TestAnEntryIsReadBack(t *testing.T) {
	t.Parallel()
	for _, e := range []Entry{
		{Tenant: "acme"},
		{Tenant: "acme", ID: "12345678", Models: []string{"llama", "1", "a, b]", "null", "#x"}},
		{Tenant: "yes", ID: "it's: \"odd\"", Models: []string{"日本語"}},
	} {
		key := NewKey()
		text, err := e.YAML(key)
		require.NoError(t, err)
		require.NotContains(t, text, key)
		k, ok := mustParse(t, "keys:\n"+text).Lookup("Bearer "+key, "", noon)
		require.True(t, ok)
		require.Equal(t, e.Tenant, k.Tenant)
		if e.ID != "" {
			require.Equal(t, e.ID, k.ID)
		}
		for _, m := range e.Models {
			require.True(t, k.Allowed(m), m)
		}
		require.Equal(t, e.Models == nil, k.Allowed("another"))
	}
	_, err := Entry{Tenant: "a\nb", Models: []string{""}}.YAML("x")
	var found Problems
	require.ErrorAs(t, err, &found)
	require.Len(t, found, 2)
	require.Equal(t, "keys[0].tenant", found[0].Path)
	require.Equal(t, "keys[0].models[0]", found[1].Path)
}
