// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runEnvoy runs holdgate envoy with args and gives what it printed.
func runEnvoy(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newEnvoyCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestEnvoyRenderPrintsOrWritesABootstrap(t *testing.T) {
	t.Parallel()
	printed, err := runEnvoy(t, "", "render", "--edge-listen", "127.0.0.1:8080", "--lanes-dir", "/run/hg", "--extproc", "127.0.0.1:9001", "--max-request-bytes", "64MiB")
	require.NoError(t, err)
	require.Contains(t, printed, "port_value: 8080")
	require.Contains(t, printed, "port_value: 9001")
	require.Contains(t, printed, "path: /run/hg/rehold.sock")
	require.Contains(t, printed, "per_request_buffer_limit_bytes: 68157440", "65 MiB")

	file := filepath.Join(t.TempDir(), "envoy.yaml")
	out, err := runEnvoy(t, "", "render", "--edge-listen", "127.0.0.1:8080", "--lanes-dir", "/run/hg", "--extproc", "127.0.0.1:9001", "--max-request-bytes", "64MiB", "-o", file)
	require.NoError(t, err)
	require.Empty(t, out)
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, printed, string(written))
}

func TestEnvoyRenderSaysBesideTheBootstrapWhereCertificatesAre(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"render", "--lanes-dir", "/run/hg", "--edge-tls-cert-file", "/c/edge.pem", "--edge-tls-key-file", "/c/edge-key.pem"}
	_, err := runEnvoy(t, "", args...)
	require.ErrorContains(t, err, "--output: is needed with certificates")
	_, err = runEnvoy(t, "", append(args, "-o", filepath.Join(dir, "envoy.yaml"))...)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "edge-tls.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(text), "filename: /c/edge-key.pem")
	text, err = os.ReadFile(filepath.Join(dir, "envoy.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(text), "path: "+filepath.Join(dir, "edge-tls.yaml"))

	_, err = runEnvoy(t, "", "render", "--extproc", "10.0.0.1:9001")
	require.ErrorContains(t, err, "--extproc: is an address that others can reach")
	_, err = runEnvoy(t, "", "render", "--extproc", "10.0.0.1:9001", "--extproc-insecure")
	require.NoError(t, err)
	_, err = runEnvoy(t, "", "render", "--extproc", "10.0.0.1:9001", "--extproc-tls-cert-file", "c", "-o", filepath.Join(dir, "e.yaml"))
	require.ErrorContains(t, err, "--extproc-tls-key-file: is required")
	require.ErrorContains(t, err, "--extproc-tls-ca-file: is required")
}

// The bootstrap is for the backends of the file, each authority once.
func TestEnvoyRenderReadsWhereBackendsAreSecure(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "serve.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`site-id: here
backends:
- {name: a, url: "https://a.example", models: [a]}
- {name: b, url: "https://b.example", models: [b], ca_file: /etc/own.pem}
- {name: c, url: "https://c.example", models: [c]}
- {name: d, url: "http://d.example", models: [d]}
`), 0o600))
	printed, err := runEnvoy(t, "", "render", "--config", file)
	require.NoError(t, err)
	require.Contains(t, printed, "name: destinations_tls_1")
	require.NotContains(t, printed, "_tls_2")
	require.Contains(t, printed, "filename: /etc/own.pem")
	require.Contains(t, printed, "exact: system")

	require.NoError(t, os.WriteFile(file, []byte("backends: [{name: a, url: x}]"), 0o600))
	_, err = runEnvoy(t, "", "render", "--config", file)
	require.ErrorContains(t, err, "--config: reading "+file)
	printed, err = runEnvoy(t, "", "render")
	require.NoError(t, err)
	require.NotContains(t, printed, "_tls_")
}

func TestEnvoyRenderNamesEachBadFlag(t *testing.T) {
	t.Parallel()
	_, err := runEnvoy(t, "", "render", "--edge-listen", "x", "--lanes-dir", "run", "--admin-listen", "y", "--max-request-bytes", "5GiB", "--heap-bytes", "1KiB", "--hold-max", "48h")
	require.Error(t, err)
	for _, flag := range []string{"--edge-listen: ", "--lanes-dir: ", "--admin-listen: ", "--max-request-bytes: ", "--heap-bytes: ", "--hold-max: "} {
		require.ErrorContains(t, err, flag)
	}
	require.Equal(t, 2, exitCode(err))
	_, err = runEnvoy(t, "", "render", "--extproc", "z")
	require.ErrorContains(t, err, `--extproc: must be unix:///path or host:port, is "z"`)
	for _, flag := range []string{"--max-request-bytes", "--heap-bytes", "--hold-max"} {
		_, err = runEnvoy(t, "", "render", flag, "0")
		require.ErrorContains(t, err, "must be above 0", flag)
	}
	_, err = runEnvoy(t, "", "render", "-o", t.TempDir())
	require.ErrorContains(t, err, "writing what was rendered")
}

func TestEnvoyIsToldWhereTheIdentityIs(t *testing.T) { //nolint:paralleltest // it sets the environment.
	t.Setenv("HOLDGATE_ENVOY", filepath.Join(t.TempDir(), "none"))
	const flag = "--identity-metadata=envoy.filters.http.jwt_authn/claims"
	with, err := runEnvoy(t, "", "render", flag)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(with, "forwarding_namespaces:"), "the edge alone")
	_, err = runEnvoy(t, with, "check", "-", flag)
	require.NoError(t, err)
	without, err := runEnvoy(t, "", "render")
	require.NoError(t, err)
	out, err := runEnvoy(t, without, "check", "-", flag)
	require.Error(t, err)
	require.Contains(t, out, "forwarding_namespaces.untyped: lacks envoy.filters.http.jwt_authn: no request would have an identity")
	for _, command := range [][]string{{"render"}, {"check", "-"}} {
		_, err = runEnvoy(t, with, append(command, "--identity-metadata=holdgate")...)
		require.ErrorContains(t, err, "--identity-metadata: must not be holdgate, which is the router's own")
		require.Equal(t, 2, exitCode(err))
	}
}

func TestEnvoyCheckWithoutABinarySaysSoAndStillChecks(t *testing.T) { //nolint:paralleltest // it sets the environment.
	t.Setenv("HOLDGATE_ENVOY", filepath.Join(t.TempDir(), "none"))
	good, err := runEnvoy(t, "", "render")
	require.NoError(t, err)
	out, err := runEnvoy(t, good, "check", "-")
	require.NoError(t, err)
	require.Contains(t, out, "not validated: no Envoy found")
	require.True(t, strings.HasSuffix(out, "ok\n"), out)

	file := filepath.Join(t.TempDir(), "envoy.yaml")
	bad := strings.ReplaceAll(good, "FULL_DUPLEX_STREAMED", "BUFFERED")
	require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
	out, err = runEnvoy(t, "", "check", file)
	require.EqualError(t, err, "2 of the settings would break held requests")
	require.Contains(t, out, "listener edge: filter envoy.filters.http.ext_proc: processing_mode.request_body_mode: is BUFFERED, must be FULL_DUPLEX_STREAMED")
	require.Contains(t, out, "listener rehold: ")

	_, err = runEnvoy(t, "", "check", file+".missing")
	require.ErrorContains(t, err, "reading the bootstrap")
	_, err = runEnvoy(t, "a: [", "check", "-")
	require.ErrorContains(t, err, "reading the bootstrap")
	_, err = runEnvoy(t, good, "check", "-", "--wake-hold-budget", "0s")
	require.ErrorContains(t, err, "--wake-hold-budget: must be above 0")
	out, err = runEnvoy(t, good, "check", "-", "--wake-hold-budget", "2h")
	require.Error(t, err)
	require.Contains(t, out, "listener edge: stream_idle_timeout: is 1h1m0s, must be 0s or above the hold budget of 2h0m0s")
}

func TestEnvoyRenderPrintsManifestsForAGateway(t *testing.T) {
	t.Parallel()
	args := []string{"render", "--for", "envoy-gateway", "--namespace", "ns1", "--gateway", "g1", "--route", "r1", "--extproc", "unix:///run/hg/e.sock"}
	printed, err := runEnvoy(t, "", args...)
	require.NoError(t, err)
	require.Contains(t, printed, "kind: EnvoyExtensionPolicy\nmetadata: {name: holdgate, namespace: ns1}")
	require.Contains(t, printed, "kind: HTTPRoute, name: r1}")
	require.Contains(t, printed, "streamIdleTimeout: 3660s")
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	out, err := runEnvoy(t, "", append(args, "--hold-max", "10m", "--max-request-bytes", "1MiB", "-o", file)...)
	require.NoError(t, err)
	require.Empty(t, out)
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(written), "streamIdleTimeout: 660s")
	require.Contains(t, string(written), "bufferLimit: 2097152")

	_, err = runEnvoy(t, "", "render", "--for", "istio", "--gateway", "a}b")
	require.ErrorContains(t, err, "--gateway: must be a DNS name")
	require.ErrorContains(t, err, "--extproc: is required")
	_, err = runEnvoy(t, "", append(args, "--lanes-dir", "/run/hg", "--edge-listen", "127.0.0.1:1")...)
	require.ErrorContains(t, err, "--lanes-dir: is only for a bootstrap")
	require.ErrorContains(t, err, "--edge-listen: is only for a bootstrap")
	_, err = runEnvoy(t, "", "render", "--gateway", "g1", "--example")
	require.ErrorContains(t, err, "--gateway: is only for the manifests of --for")
	require.ErrorContains(t, err, "--example: is only for the manifests of --for")
	_, err = runEnvoy(t, "", "render", "--for=")
	require.ErrorContains(t, err, "--for: must be one of")
}
