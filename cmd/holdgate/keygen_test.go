// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/access"
)

// runKeygen runs holdgate keygen with args and gives what it printed.
func runKeygen(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, other bytes.Buffer
	cmd := newKeygenCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&other)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	require.Empty(t, other.String())
	return out.String(), err
}

func TestKeygenPrintsAKeyAndItsEntry(t *testing.T) {
	t.Parallel()
	out, err := runKeygen(t, "--tenant", "acme", "--id", "acme-prod", "--models", "llama,qwen", "--models", "mistral")
	require.NoError(t, err)
	key, rest, _ := strings.Cut(out, "\n")
	require.NotContains(t, rest, key, "it is printed once")

	// All but the key itself is good below keys.
	keys, err := access.Parse([]byte("keys:\n" + rest))
	require.NoError(t, err)
	k, ok := keys.Lookup("Bearer "+key, "", time.Now())
	require.True(t, ok)
	require.Equal(t, "acme", k.Tenant)
	require.Equal(t, "acme-prod", k.ID)
	for _, m := range []string{"llama", "qwen", "mistral"} {
		require.True(t, k.Allowed(m))
	}
	require.False(t, k.Allowed("other"))

	another, err := runKeygen(t, "--tenant", "acme")
	require.NoError(t, err)
	require.NotContains(t, another, key)
	require.NotContains(t, another, "models")
}

func TestKeygenNamesEachBadFlag(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--tenant is required: who the key belongs to":        {},
		"--id: must not contain control characters":           {"--tenant", "a", "--id", "a\tb"},
		"--models[1]: is given twice: it is also --models[0]": {"--tenant", "a", "--models", "x,x"},
		"--models[0]: must not be empty":                      {"--tenant", "a", "--models", ",x"},
		"--models: must not be empty":                         {"--tenant", "a", "--models", ""},
		"--tenant: must have at most 256 bytes, has 65536":    {"--tenant", strings.Repeat("x", 1<<16)},
	} {
		out, err := runKeygen(t, args...)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "line")
		require.NotContains(t, err.Error(), "keys[")
		require.Equal(t, 2, exitCode(err))
		require.Empty(t, out)
	}
}
