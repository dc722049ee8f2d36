// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json/v2"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/target"
)

const testKey = "hg-a-key"

// oneKey is the text of a keys file with testKey, whose entry has more.
func oneKey(more string) string {
	sum := sha256.Sum256([]byte(testKey))
	return fmt.Sprintf("keys: [{id: k, tenant: acme, key_hash: %s%s}]", hex.EncodeToString(sum[:]), more)
}

// calls begins a request with a key, or with none.
func calls(t *testing.T, a *App, key string) extproc.Call {
	t.Helper()
	call, why := a.decider.Authenticate(extproc.Credentials{APIKey: key})
	require.Nil(t, why)
	return call
}

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

func TestWhoSentARequest(t *testing.T) {
	t.Parallel()
	keys := temporary(t, oneKey(", models: [a]"))
	const identities = "--identity-metadata=auth"
	acme, bad := map[string]any{"tenant": "from-jwt", "key_id": "u1", "models": "b"}, map[string]any{"key_id": "u1"}
	bearer := "Bearer " + testKey
	for name, c := range map[string]struct {
		flags    []string
		key      string
		metadata map[string]any
		want     string // tenant and key id; empty: 401
		strip    bool
	}{
		"nobody asks":                {key: bearer, want: "default/"},
		"metadata nobody asked for":  {metadata: acme, want: "default/"},
		"a key":                      {flags: []string{"--auth-file", keys}, key: bearer, want: "acme/k", strip: true},
		"a key, passed on":           {flags: []string{"--auth-file", keys, "--forward-authorization"}, key: bearer, want: "acme/k"},
		"no key, but metadata":       {flags: []string{"--auth-file", keys}, metadata: acme},
		"an identity":                {flags: []string{identities}, metadata: acme, want: "from-jwt/u1", strip: true},
		"an identity, passed on":     {flags: []string{identities, "--forward-authorization"}, metadata: acme, want: "from-jwt/u1"},
		"no identity":                {flags: []string{identities}, key: bearer},
		"an identity without tenant": {flags: []string{identities}, metadata: bad},
		"of a bad type":              {flags: []string{identities}, metadata: map[string]any{"tenant": 1}},
		"other metadata":             {flags: []string{identities}, metadata: map[string]any{"ext_authz_duration": 1}},
		"both":                       {flags: []string{identities, "--auth-file", keys}, metadata: acme, key: bearer, want: "from-jwt/u1", strip: true},
		"the key of both":            {flags: []string{identities, "--auth-file", keys}, metadata: map[string]any{"ext_authz_duration": 1}, key: bearer, want: "acme/k", strip: true},
		"a bad identity and a key":   {flags: []string{identities, "--auth-file", keys}, metadata: bad, key: bearer},
		"neither":                    {flags: []string{identities, "--auth-file", keys}},
	} {
		d := newApp(t, c.flags...).decider
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

// A sibling's word on a key does not let anybody in where only identities count.
func TestATokenOfASiblingIsNoIdentity(t *testing.T) {
	t.Parallel()
	d := newApp(t, "--identity-metadata=auth").decider
	require.Nil(t, d.byID("k"))
}

func TestTheModelsOfACallerAreThoseThatItMayUse(t *testing.T) {
	t.Parallel()
	a := newApp(t, "--auth-file", temporary(t, oneKey(", models: [m, gone]")))
	_, err := a.maps.Push([]byte(rigMap), false)
	require.NoError(t, err)
	call := calls(t, a, testKey)
	var list modelList
	require.NoError(t, json.Unmarshal(call.Models(""), &list))
	require.Len(t, list.Data, 1)
	require.Equal(t, "m", list.Data[0].ID)
	require.NotNil(t, call.Models("m"))
	require.Nil(t, call.Models("hour"))

	a = newApp(t)
	_, err = a.maps.Push([]byte(rigMap), false)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(calls(t, a, "").Models(""), &list))
	require.Len(t, list.Data, 3)
}

func TestTenantsOfIdentitiesAreNotKnownBefore(t *testing.T) {
	t.Parallel()
	require.Empty(t, newApp(t, "--identity-metadata=auth").tenants())
}

func TestAKeyThatExpiresEndsItsHeldRequests(t *testing.T) {
	t.Parallel()
	keys := temporary(t, oneKey(", expires: 2000-01-01T00:00:20Z"))
	bubble(t, func(r *rig) {
		t := r.t
		streamed := r.post("/v1/chat/completions", `{"model":"m","stream":true}`, "x-api-key", testKey)
		quiet := r.chat("m", "x-api-key", testKey, "x-wake-keepalive", "off")
		require.Equal(t, 2, r.demand("m"))
		pass(20 * time.Second)
		require.Zero(t, r.demand("m"))
		require.Contains(t, quiet.all(), `20s 401 {"error":{"code":"unauthorized"`)
		require.Contains(t, streamed.all(), "15s head")
		require.Contains(t, streamed.all(), `20s "data: {\"error\":{\"code\":\"unauthorized\"`)
		require.Equal(t, 2, r.holds("removed"))
	}, "--auth-file", keys)
}

// A reload moves the end, in both directions.
func TestANewExpiryCounts(t *testing.T) {
	t.Parallel()
	keys := temporary(t, oneKey(", expires: 2000-01-01T00:00:10Z"))
	bubble(t, func(r *rig) {
		t := r.t
		renew := func(expires string) {
			require.NoError(t, os.WriteFile(keys, []byte(oneKey(", expires: "+expires)), 0o600))
			require.NoError(t, r.keys.Reload())
		}
		one := r.chat("m", "x-api-key", testKey, "x-wake-keepalive", "off")
		renew("2000-01-01T00:01:00Z")
		pass(30 * time.Second)
		require.Empty(t, one.all())
		renew("2000-01-01T00:00:40Z")
		pass(9 * time.Second)
		require.Empty(t, one.all())
		pass(time.Second)
		require.Contains(t, one.all(), "40s 401 ")
	}, "--auth-file", keys)
}

// The id says whose key it is. Which key is good is said by its hash alone.
func TestAKeyThatIsReplacedEndsItsHeldRequests(t *testing.T) {
	t.Parallel()
	keys := temporary(t, oneKey(""))
	bubble(t, func(r *rig) {
		t := r.t
		replace := func(text string) {
			require.NoError(t, os.WriteFile(keys, []byte(text), 0o600))
			require.NoError(t, r.keys.Reload())
		}
		held := r.chat("m", "x-api-key", testKey)
		pass(20 * time.Second)
		replace(strings.Replace(oneKey(""), "id: k", "id: renamed", 1))
		require.Equal(t, 1, r.demand("m"))
		replace(strings.NewReplacer("id: k", "id: renamed", hashOf(testKey), hashOf("new")).Replace(oneKey("")))
		require.Zero(t, r.demand("m"))
		require.Contains(t, held.all(), `20s "{\"error\":{\"code\":\"unauthorized\"`)
	}, "--auth-file", keys)
}

// The audit log must say what the metric of holds has counted.
func TestARefusedHoldHasItsOutcome(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		decide := func(patience time.Duration) extproc.Decision {
			return calls(t, r.App, "").Decide(&extproc.Request{
				Endpoint: &extproc.Endpoint{Kind: target.Chat}, Model: "m", Patience: patience,
			})
		}
		require.Equal(t, holdstate.OutcomeExpired, decide(0).Outcome)
		require.Equal(t, 1, r.holds("expired"))
		waits := r.chat("m")
		require.Equal(t, holdstate.OutcomeFull, decide(-1).Outcome)
		require.Equal(t, 1, r.holds("full"))
		r.machine.Fail("m", "it was a test")
		require.Equal(t, holdstate.Pending, decide(-1).Outcome, "it is not counted")
		waits.gone()
	}, "--wake-hold-max=1")
}

// Envoy carried it in between, and its replica died.
func TestARequestThatIsHeldAgainIsCountedOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		call := calls(t, r.App, "")
		hold := func() extproc.Decision {
			return call.Decide(&extproc.Request{Endpoint: &extproc.Endpoint{}, Model: "m", Patience: -1})
		}
		hold().Waiter.Tell(holdstate.Leave)
		require.Equal(t, 1, r.holds("disconnected"))
		again := hold().Waiter
		require.Equal(t, 1, r.demand("m"))
		require.Equal(t, holdstate.OutcomeDisconnected, again.Tell(holdstate.Leave).Outcome)
		other := r.chat("m")
		require.Equal(t, 503, hold().Refusal.Status)
		other.gone()
		require.Equal(t, []int{2, 0}, []int{r.holds("disconnected"), r.holds("full")}, "the other's is the second")
	}, "--wake-hold-max=1")
}

func TestAKeyThatExpiresDuringItsUploadIsNotHeld(t *testing.T) {
	t.Parallel()
	keys := temporary(t, oneKey(", expires: 2000-01-01T00:00:10Z"))
	bubble(t, func(r *rig) {
		t := r.t
		call := calls(t, r.App, testKey)
		pass(11 * time.Second)
		decision := call.Decide(&extproc.Request{Endpoint: &extproc.Endpoint{}, Model: "m", Patience: -1})
		require.Equal(t, 401, decision.Refusal.Status)
		require.Zero(t, r.demand("m"))
	}, "--auth-file", keys)
}
