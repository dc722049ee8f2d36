// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/config"
)

func TestCheckReportsEveryBadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	run := func(args ...string) error {
		c := &config.Serve{}
		set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		c.Flags(set)
		require.NoError(t, set.Parse(append([]string{"--site-id=here"}, args...)))
		return Check(c)
	}
	require.NoError(t, run())
	good := []string{
		"--map-file", file("map.json", `{"placements":[{"model":"m","kind":"chat","site":"here"}]}`),
		"--policy-file", file("policy.yaml", "models: {m: {aliases: [n]}}"),
		"--auth-file", file("keys.yaml", "keys: []"),
		"--admin-token-file", file("token", "secret"),
		"--engine-auth-file", file("good-engines.yaml", "models: {m: {api_key_file: token}}"),
	}
	require.NoError(t, run(good...))
	require.NoError(t, run("--map-file", filepath.Join(dir, "missing")), "serve makes it")
	require.NoError(t, run("--map-file", file("empty-map.json", "")), "as good as none")
	cert, key := certstest.New(t).Issue()
	require.NoError(t, run("--agents-tls-cert-file", cert, "--agents-tls-key-file", key, "--keda-tls-cert-file", cert, "--keda-tls-key-file", key))
	err := run(
		"--map-file", file("bad-map.json", `{"placements":[{"model":"","kind":"chat","site":"here"}]}`),
		"--policy-file", file("bad-policy.yaml", "models: {m: {alias: [n]}}"),
		"--auth-file", file("bad-keys.yaml", "keys: [{}]"),
		"--admin-token-file", file("empty", ""), "--hop-secret-file", file("short", "short"),
		"--webhook-headers-file", file("bad-headers.yaml", "[]"), "--engine-auth-file", file("engines.yaml", "models: {m: {api_key_file: missing}}"),
		"--agents-token-file", filepath.Join(dir, "missing"),
		"--webhook-ca-file", file("no-ca.pem", "none"), "--webhook-cert-file", filepath.Join(dir, "missing"), "--agents-tls-cert-file", cert, "--agents-tls-key-file", cert, "--keda-tls-cert-file", key, "--keda-tls-key-file", key,
	)
	for _, flag := range []string{
		"map-file", "policy-file", "auth-file", "admin-token-file", "hop-secret-file", "webhook-headers-file", "engine-auth-file", "agents-token-file",
		"webhook-ca-file", "webhook-cert-file", "agents-tls-key-file", "keda-tls-cert-file",
	} {
		require.ErrorContains(t, err, "--"+flag+": ")
	}
	require.ErrorContains(t, run(good[0], good[1], "--policy-file", file("shadow.yaml", "models: {other: {aliases: [m]}}")),
		"--policy-file: models.other.aliases: m is a model of the map or of a backend")
	alias := file("alias.yaml", "models: {m: {aliases: [n, o]}}")
	hash := hashOf("k")
	for flag, name := range map[string]string{
		"auth-file":        file("models-keys.yaml", "keys: [{key_hash: "+hash+", tenant: t, models: [n]}]"),
		"engine-auth-file": file("alias-engines.yaml", "models: {n: {api_key_file: token}}"),
	} {
		require.ErrorContains(t, run("--policy-file", alias, "--"+flag, name), "--"+flag+": n is an alias of model m in --policy-file, and no request is for it: name m")
	}
	quota := file("quota-keys.yaml", "keys: [{key_hash: "+hash+", tenant: t, quota: {per_model: {o: {requests_per_minute_per_replica: 1}}}}]")
	require.ErrorContains(t, run("--policy-file", alias, "--auth-file", quota), "--auth-file: o is an alias of model m")
	require.NoError(t, run("--policy-file", alias, "--auth-file", file("m-keys.yaml", "keys: [{key_hash: "+hash+", tenant: t, models: [m, other]}]")))
	require.ErrorContains(t, run("--audit-file", filepath.Join(dir, "token", "audit.log")), "--audit-file: ")
	require.ErrorContains(t, run("--audit-file", dir), "--audit-file: "+dir+" is not a regular file but a directory")
	require.NoError(t, run("--audit-file", filepath.Join(dir, "new", "audit.log")))
	require.NoError(t, run("--audit-file=-"))
	require.NoDirExists(t, filepath.Join(dir, "new"), "check makes nothing")
	text, err := os.ReadFile(filepath.Join(dir, "bad-map.json"))
	require.NoError(t, err)
	require.NotEmpty(t, text, "check moves nothing away")
}

func TestServeRefusesFilesThatItCannotUse(t *testing.T) {
	t.Parallel()
	log := temporary(t, "started\n")
	missing := log + ".missing"
	for name, c := range map[string]struct{ flag, path, want string }{
		"a map file that is a log": {"map-file", log, "--map-file is " + log + ", which is not a sibling map: name a file of its own"},
		"no keys file":             {"auth-file", missing, "reading --auth-file: stat " + missing + ": no such file or directory"},
		"no policy file":           {"policy-file", missing, "reading --policy-file: stat " + missing + ": no such file or directory"},
		"no file of engines' keys": {"engine-auth-file", missing, "reading --engine-auth-file: stat " + missing + ": no such file or directory"},
	} {
		conf := &config.Serve{}
		set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		conf.Flags(set)
		require.NoError(t, set.Parse([]string{"--site-id=here", "--" + c.flag, c.path}))
		_, err := New(conf, zerolog.Nop())
		require.EqualError(t, err, c.want, name)
	}
	require.FileExists(t, log)
}
