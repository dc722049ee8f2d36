// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc"
)

func TestWhoSentARequest(t *testing.T) {
	t.Parallel()
	keys := keysFrom(t, oneKey(", models: [a]"))
	acme, bad := map[string]any{"tenant": "from-jwt", "key_id": "u1", "models": "b"}, map[string]any{"key_id": "u1"}
	bearer := "Bearer " + testKey
	for name, c := range map[string]struct {
		o        Options
		key      string
		metadata map[string]any
		want     string // tenant and key id; empty: 401
		strip    bool
	}{
		"nobody asks":                {key: bearer, want: "default/"},
		"metadata nobody asked for":  {metadata: acme, want: "default/"},
		"a key":                      {o: Options{Keys: keys}, key: bearer, want: "acme/k", strip: true},
		"a key, passed on":           {o: Options{Keys: keys, ForwardKeys: true}, key: bearer, want: "acme/k"},
		"no key, but metadata":       {o: Options{Keys: keys}, metadata: acme},
		"an identity":                {o: Options{Identities: true}, metadata: acme, want: "from-jwt/u1", strip: true},
		"an identity, passed on":     {o: Options{Identities: true, ForwardKeys: true}, metadata: acme, want: "from-jwt/u1"},
		"no identity":                {o: Options{Identities: true}, key: bearer},
		"an identity without tenant": {o: Options{Identities: true}, metadata: bad},
		"of a bad type":              {o: Options{Identities: true}, metadata: map[string]any{"tenant": 1}},
		"other metadata":             {o: Options{Identities: true}, metadata: map[string]any{"ext_authz_duration": 1}},
		"both":                       {o: Options{Identities: true, Keys: keys}, metadata: acme, key: bearer, want: "from-jwt/u1", strip: true},
		"the key of both":            {o: Options{Identities: true, Keys: keys}, metadata: map[string]any{"ext_authz_duration": 1}, key: bearer, want: "acme/k", strip: true},
		"a bad identity and a key":   {o: Options{Identities: true, Keys: keys}, metadata: bad, key: bearer},
		"neither":                    {o: Options{Identities: true, Keys: keys}},
	} {
		d := New(c.o)
		credentials := extproc.Credentials{Method: "POST", PathAndQuery: "/v1/chat/completions", Authorization: c.key}
		if c.metadata != nil && d.identities {
			credentials.Metadata = claims(t, c.metadata)
		}
		call, why := d.Authenticate(credentials)
		if c.want == "" {
			require.NotNil(t, why, name)
			require.Equal(t, 401, why.Status, name)
			require.Nil(t, call, name)
			continue
		}
		require.Nil(t, why, name)
		require.Equal(t, c.want, call.Caller().TenantID+"/"+call.Caller().KeyID, name)
		require.Equal(t, c.strip, call.Forward().StripKeys, name)
	}
}

// A router without a keys file, where only identities count, accepts no key that a sibling
// has authenticated.
func TestATokenOfASiblingIsNoIdentity(t *testing.T) {
	t.Parallel()
	d := New(Options{Identities: true})
	require.Nil(t, d.byID("k"))
}

func TestAKeyThatExpiresDuringItsUploadIsNotHeld(t *testing.T) {
	t.Parallel()
	bubble(t, setup{keys: oneKey(", expires: 2000-01-01T00:00:10Z"), placements: rigMap}, func(r *rig) {
		call := r.calls(testKey)
		pass(11 * time.Second)
		decision := call.Decide(chat("m"))
		require.Equal(t, 401, decision.Refusal.Status)
		require.Zero(t, r.o.Machine.Demand("m"))
	})
}
