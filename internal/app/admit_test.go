// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc"
)

const testKey = "hg-a-key"

// oneKey is the text of a keys file with testKey, whose entry ends with more.
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

// A reload moves the expiry of a key, in both directions.
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

// The id is of the owner of a key; the hash alone decides which key is valid.
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
