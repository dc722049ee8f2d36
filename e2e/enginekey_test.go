// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const engineSecret = "sk-the-engine-s-own"

// engineKeys writes a file with the key of the model m.
func engineKeys(t *testing.T, more string) (path, keyFile string) {
	t.Helper()
	dir := t.TempDir()
	path, keyFile = filepath.Join(dir, "engines.yaml"), filepath.Join(dir, "m.key")
	require.NoError(t, os.WriteFile(keyFile, []byte(engineSecret+"\n"), 0o600))
	require.NoError(t, os.WriteFile(path, []byte("models: {m: {api_key_file: m.key"+more+"}}"), 0o600))
	return path, keyFile
}

// keysOf returns the keys with which a request reached the engine.
func keysOf(e *engine) []string {
	r, _ := e.last()
	return append(r.Header.Values("Authorization"), r.Header.Values("X-Api-Key")...)
}

func TestTheEngineGetsItsOwnKeyOnEveryPath(t *testing.T) {
	path, keyFile := engineKeys(t, "")
	s, recordOf := startAudited(t, "--engine-auth-file", path, "--auth-file", keysFile(t, ""))
	caller := []string{"Authorization", "Bearer " + apiKey, "Authorization", "Bearer other", "X-Api-Key", apiKey}
	want := []string{"Bearer " + engineSecret}
	e := newEngine(t, nil)
	ids := []string{uuid.NewString(), uuid.NewString()}

	held := s.start(t.Context(), chatPath, chatBody("m", false), append(caller, "X-Request-Id", ids[0])...)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	a := s.register(hello("a", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-held).status)
	require.Equal(t, want, keysOf(e), "relayed")

	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false), append(caller, "X-Request-Id", ids[1])...).status)
	require.Equal(t, want, keysOf(e), "native")

	// The second attempt comes through the rehold lane, where the request has the
	// engine's key.
	a.leave()
	s.register(hello("gone", closedPort(t), 4, "m"))
	held = s.start(t.Context(), chatPath, chatBody("m", false), caller...)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("b", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-held).status)
	require.Equal(t, want, keysOf(e), "after a replica that refused")
	s.atRest()

	require.NoError(t, os.WriteFile(keyFile, []byte("sk-rotated"), 0o600))
	require.NoError(t, s.app.Reload())
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false), caller...).status)
	require.Equal(t, []string{"Bearer sk-rotated"}, keysOf(e))

	for _, id := range ids {
		recordOf(id)
	}
	text, err := os.ReadFile(s.audit)
	require.NoError(t, err)
	for _, where := range []string{string(text), s.log.String(), s.metrics()} {
		require.NotContains(t, where, engineSecret)
		require.NotContains(t, where, apiKey)
	}
}

// Without a keys file callers' own keys reach the engine, unless it has a key.
func TestWithoutAKeysFileOnlyAnEnginesKeyReplacesTheCallers(t *testing.T) {
	path, _ := engineKeys(t, ", header: x-api-key")
	s := startSite(t, "--engine-auth-file", path)
	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), 4, "m", "short"))
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false), "Authorization", "Bearer mine", "X-Api-Key", "mine").status)
	require.Equal(t, []string{engineSecret}, keysOf(e))
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("short", false), "Authorization", "Bearer mine").status)
	require.Equal(t, []string{"Bearer mine"}, keysOf(e))
	s.atRest()
}

func TestForwardAuthorizationPassesTheCallersKeyOn(t *testing.T) {
	s := startSite(t, "--auth-file", keysFile(t, ""), "--forward-authorization")
	e := newEngine(t, nil)
	held := s.start(t.Context(), chatPath, chatBody("m", false), "Authorization", "Bearer "+apiKey)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-held).status)
	require.Equal(t, []string{"Bearer " + apiKey}, keysOf(e))
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false), "X-Api-Key", apiKey).status)
	require.Equal(t, []string{apiKey}, keysOf(e))
	require.Equal(t, http.StatusUnauthorized, s.post(chatPath, chatBody("m", false), "X-Api-Key", strings.ToUpper(apiKey)).status)
	s.atRest()
}
