// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"
)

func TestAddresses(t *testing.T) {
	for _, tc := range []struct{ url, problem string }{
		{"valkey://localhost:6379", ""},
		{"valkey://user@localhost:6379/3?prefix=site-1", ""},
		{"redis://one:6379?addr=two:6379&addr=three:6379", ""},
		{"rediss://sentinel:26379?master_set=holdgate", ""},
		{"valkeys://[::1]:6379", ""},
		{"unix:///run/valkey.sock?db=1", ""},
		{"valkey://user:secret@localhost", "has a password"},
		{"valkey://:secret@%zz", "is not a URL"},
		{"valkey://?prefix=site-1", "has no host"},
		{"valkey://:6379", "has no host"},
		{"valkey://localhost:65536", "port"},
		{"unix://", "must have a path"},
		{"unix://valkey.sock", "must have a path"},
		{"http://localhost", "must be valkey://"},
		{"localhost:6379", "must be valkey://"},
		{"valkey://localhost/one", "must be valkey://"},
		{"valkey://localhost?prefix=", "prefix"},
		{"valkey://localhost?prefix={a}", "prefix"},
		{"valkey://localhost?skip_verify=1", "unknown parameter skip_verify"},
	} {
		t.Run(tc.url, func(t *testing.T) {
			err := Check(tc.url)
			if tc.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.problem)
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

func TestAnAddressHasItsParts(t *testing.T) {
	o, prefix, err := parse("valkeys://user@one:7000/3?addr=two:7001&prefix=site-1&master_set=m")
	require.NoError(t, err)
	require.Equal(t, []string{"one:7000", "two:7001"}, o.InitAddress)
	require.Equal(t, "site-1", prefix)
	require.Equal(t, "user", o.Username)
	require.Equal(t, "m", o.Sentinel.MasterSet)
	require.Equal(t, 3, o.SelectDB)
	require.NotNil(t, o.TLSConfig)
}

func TestAPasswordFileIsReadForEachConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("first\n")
	o, _, err := Address{URL: "valkey://me@localhost", PasswordFile: path}.options()
	require.NoError(t, err)
	login := func() valkey.AuthCredentials {
		c, err := o.AuthCredentialsFn(valkey.AuthCredentialsContext{})
		require.NoError(t, err)
		return c
	}
	require.Equal(t, valkey.AuthCredentials{Username: "me", Password: "first"}, login())
	write("you\r\nsecond\r\n")
	require.Equal(t, valkey.AuthCredentials{Username: "you", Password: "second"}, login())
	for _, bad := range []string{"", "\n", "one\nsecret\nthree\n"} {
		write(bad)
		_, err := o.AuthCredentialsFn(valkey.AuthCredentialsContext{})
		require.Error(t, err, "%q", bad)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestAuthoritiesNeedTLS(t *testing.T) {
	_, _, err := Address{URL: "valkey://localhost", CAFile: "ca.pem"}.options()
	require.ErrorContains(t, err, "without TLS")
	_, _, err = Address{URL: "valkeys://localhost", CAFile: filepath.Join(t.TempDir(), "none")}.options()
	require.ErrorContains(t, err, "reading the authorities")
}
