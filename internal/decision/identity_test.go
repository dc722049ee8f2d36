// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/internal/access"
)

func claims(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	require.NoError(t, err)
	return s
}

func TestAnIdentityHasFourFields(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fields map[string]any
		want   access.Identity
		there  bool
		err    string
	}{
		"all": {
			fields: map[string]any{"tenant": "acme", "key_id": "k", "models": []any{"a", "b"}, "scopes": "eu, us,", "iss": "x"},
			want:   access.Identity{Tenant: "acme", ID: "k", Models: []string{"a", "b"}, Scopes: []string{"eu", "us"}}, there: true,
		},
		"a tenant":       {fields: map[string]any{"tenant": "acme"}, want: access.Identity{Tenant: "acme"}, there: true},
		"empty lists":    {fields: map[string]any{"models": []any{}, "scopes": ""}, want: access.Identity{Models: []string{}, Scopes: []string{}}, there: true},
		"no tenant":      {fields: map[string]any{"key_id": "k"}, want: access.Identity{ID: "k"}, there: true},
		"nothing of it":  {fields: map[string]any{"ext_authz_duration": 3}},
		"nothing at all": {},
		"a number":       {fields: map[string]any{"tenant": 7}, there: true, err: "tenant must be a string"},
		"a null":         {fields: map[string]any{"tenant": "a", "key_id": nil}, want: access.Identity{Tenant: "a"}, there: true, err: "key_id must be a string"},
		"bad lists": {
			fields: map[string]any{"tenant": "a", "models": 1, "scopes": []any{true}},
			want:   access.Identity{Tenant: "a", Models: []string{}, Scopes: []string{}}, there: true, err: "models must be a list of strings, or a string with commas\nscopes must",
		},
	} {
		i, there, err := identityOf(claims(t, c.fields))
		require.Equal(t, c.want, i, name)
		require.Equal(t, c.there, there, name)
		if c.err == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.err, name)
		}
	}
}
