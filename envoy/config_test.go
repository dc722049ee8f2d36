// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/settings"
)

// good is a configuration without a problem.
var good = Config{EdgeListen: "127.0.0.1:8080", LanesDir: "/run/holdgate"}

func TestEveryBadFieldIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no edge":            {func(c *Config) { c.EdgeListen = "" }, "EdgeListen: is required"},
		"edge without port":  {func(c *Config) { c.EdgeListen = "127.0.0.1" }, "EdgeListen: must be an IP address and a port"},
		"edge without host":  {func(c *Config) { c.EdgeListen = ":8080" }, "EdgeListen: must be an IP address and a port"},
		"edge by name":       {func(c *Config) { c.EdgeListen = "localhost:8080" }, `is "localhost:8080"`},
		"edge port too high": {func(c *Config) { c.EdgeListen = "127.0.0.1:65536" }, "EdgeListen: must be"},
		"edge with zone":     {func(c *Config) { c.EdgeListen = "[fe80::1%eth0]:1" }, "EdgeListen: must have no zone"},
		"admin by name":      {func(c *Config) { c.AdminListen = "localhost:0" }, "AdminListen: must be an IP address and a port"},
		"extproc scheme":     {func(c *Config) { c.ExtProc = "http://127.0.0.1:9001" }, "ExtProc: must be unix:///path or host:port"},
		"extproc no port":    {func(c *Config) { c.ExtProc = "127.0.0.1" }, "ExtProc: must be unix:///path or host:port"},
		"extproc no host":    {func(c *Config) { c.ExtProc = ":9001" }, "ExtProc: must be unix:///path or host:port"},
		"extproc bad host":   {func(c *Config) { c.ExtProc = "a b:9001" }, "ExtProc: must be unix:///path or host:port"},
		"extproc port 0":     {func(c *Config) { c.ExtProc = "127.0.0.1:0" }, "ExtProc: must have a port between 1 and 65535"},
		"extproc port name":  {func(c *Config) { c.ExtProc = "127.0.0.1:http" }, "ExtProc: must have a port between 1 and 65535"},
		"extproc relative":   {func(c *Config) { c.ExtProc = "unix://run/x.sock" }, "ExtProc: must be an absolute path"},
		"extproc too long":   {func(c *Config) { c.ExtProc = "unix:///" + strings.Repeat("x", 107) }, "ExtProc: a unix socket's path has at most 107 bytes, this one has 108"},
		"edge key missing":   {func(c *Config) { c.EdgeCertFile, c.SecretsDir = "/c", "/" }, "EdgeKeyFile: is required"},
		"extproc CA missing": {func(c *Config) { tlsOf(c); c.ExtProcCAFile = "" }, "ExtProcCAFile: is required"},
		"no secrets dir":     {func(c *Config) { tlsOf(c); c.SecretsDir = "" }, "SecretsDir: must be an absolute path"},
		"TLS on a socket":    {func(c *Config) { tlsOf(c); c.ExtProc = "" }, "ExtProcCertFile: goes with a host:port"},
		"extproc in plain":   {func(c *Config) { c.ExtProc = "10.0.0.1:9001" }, "ExtProc: is an address that others can reach"},
		"extproc by name":    {func(c *Config) { c.ExtProc = "holdgate.svc:9001" }, "ExtProc: is an address that others can reach"},
		"no lanes":           {func(c *Config) { c.LanesDir = "" }, "LanesDir: is required"},
		"lanes relative":     {func(c *Config) { c.LanesDir = "run" }, "LanesDir: must be an absolute path"},
		"lanes too long":     {func(c *Config) { c.LanesDir = "/" + strings.Repeat("x", 94) }, "LanesDir: is too long for a unix socket: 108 bytes"},
		"lanes not UTF-8":    {func(c *Config) { c.LanesDir = "/run/\xff" }, "LanesDir: must be UTF-8"},
		"lanes zero byte":    {func(c *Config) { c.LanesDir = "/run/\x00" }, "LanesDir: must be UTF-8 without zero bytes"},
		"body below 0":       {func(c *Config) { c.MaxRequestBytes = -1 }, "MaxRequestBytes: must be between 1 and 2147483648, is -1"},
		"body too large":     {func(c *Config) { c.MaxRequestBytes = 1<<31 + 1 }, "MaxRequestBytes: must be between"},
		"hold below 0":       {func(c *Config) { c.HoldMax = -time.Second }, "HoldMax: must be above 0"},
		"hold too long":      {func(c *Config) { c.HoldMax = 25 * time.Hour }, "HoldMax: must be above 0 and at most 24h0m0s, is 25h0m0s"},
		"authority":          {func(c *Config) { c.BackendCAs = []string{SystemCA, "ca.pem"} }, "BackendCAs: must be an absolute path"},
		"heap too small":     {func(c *Config) { c.HeapBytes = 1 }, "HeapBytes: must be at least 67108864 (64 MiB), is 1"},
	} {
		config := good
		c.change(&config)
		_, err := Render(config)
		require.ErrorContains(t, err, c.want, name)
		fields := problemsOf(err)
		require.Len(t, fields, 1, name)
		require.True(t, strings.HasPrefix(c.want, fields[0].Path) || strings.HasPrefix(name, "edge"), name)
	}
}

// problemsOf returns the problems in an error of Render.
func problemsOf(err error) settings.Problems {
	problems, _ := errors.AsType[settings.Problems](err)
	return problems
}

func tlsOf(c *Config) {
	c.ExtProc, c.SecretsDir = "10.0.0.1:9001", "/"
	c.ExtProcCertFile, c.ExtProcKeyFile, c.ExtProcCAFile = "/c", "/k", "/a"
}

func TestSecretsNameTheFilesThatEnvoyWatches(t *testing.T) {
	t.Parallel()
	files, err := Secrets(tlsConfig)
	require.NoError(t, err)
	require.Len(t, files, 3)
	require.Contains(t, string(files["edge-tls.yaml"]), "filename: /certs/edge-key.pem")
	require.Contains(t, string(files["extproc-tls.yaml"]), "filename: /certs/envoy.pem")
	require.Contains(t, string(files["extproc-ca.yaml"]), "filename: /certs/ca.pem")
	files, err = Secrets(goldenConfigs["unix"])
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestAllProblemsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Render(Config{AdminListen: "x", ExtProc: "x", LanesDir: "/run", MaxRequestBytes: -1, HoldMax: -1, HeapBytes: 1})
	var named []string
	for _, f := range problemsOf(err) {
		named = append(named, f.Path)
	}
	require.Equal(t, []string{"EdgeListen", "AdminListen", "ExtProc", "MaxRequestBytes", "HoldMax", "HeapBytes"}, named)

	for _, c := range []Config{{TrustedHops: -1}, {TrustedHops: 17}, {TrustedHops: 1, ProxyProtocol: true}} {
		c.EdgeListen, c.LanesDir = "127.0.0.1:0", "/run"
		_, err = Render(c)
		fields := problemsOf(err)
		require.Len(t, fields, 1)
		require.Equal(t, "TrustedHops", fields[0].Path)
	}

	_, err = Render(Config{EdgeListen: "127.0.0.1:0"})
	require.EqualError(t, err, "LanesDir: is required: the directory of rehold.sock and relay.sock", "ExtProc has its default from it")
	require.Empty(t, problemsOf(nil))
}

func TestTheLongestPathsAreAccepted(t *testing.T) {
	t.Parallel()
	config := good
	config.LanesDir = "/" + strings.Repeat("x", 93)
	config.ExtProc = "unix:///" + strings.Repeat("x", 106)
	_, err := Render(config)
	require.NoError(t, err)
}

func TestNoTextMakesRenderFailWithoutNamingAField(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`(unix://)?/?[a-z.:\[\]\x00-\xff]{0,12}:?[0-9]{0,6}`))
		config := Config{
			EdgeListen: text.Draw(t, "edge"), AdminListen: text.Draw(t, "admin"), ExtProc: text.Draw(t, "extproc"), LanesDir: text.Draw(t, "lanes"),
			MaxRequestBytes: rapid.Int64().Draw(t, "body"), HeapBytes: rapid.Uint64().Draw(t, "heap"),
		}
		b, err := Render(config)
		if err != nil {
			require.NotEmpty(t, problemsOf(err), err.Error())
			return
		}
		_, err = YAML(b)
		require.NoError(t, err)
	})
}

func TestParseFailedReadsWhatEnvoyWrites(t *testing.T) {
	t.Parallel()
	f, err := ParseFailed("10.0.0.1:8000;sent=0")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1:8000", f.Address.String())
	require.Zero(t, f.Sent)
	f, err = ParseFailed("10.0.0.1:8000;sent=7;received=98")
	require.NoError(t, err)
	require.Equal(t, [2]uint64{7, 98}, [2]uint64{f.Sent, f.Received})
	f, err = ParseFailed("[::1]:8000;sent=100236")
	require.NoError(t, err)
	require.Equal(t, "[::1]:8000", f.Address.String())
	require.Equal(t, uint64(100236), f.Sent)
	require.Zero(t, f.Received)
	f, err = ParseFailed("10.0.0.1:8000;sent=10;received=20")
	require.NoError(t, err)
	require.Equal(t, Failed{Address: netip.MustParseAddrPort("10.0.0.1:8000"), Sent: 10, Received: 20}, f)
	for _, s := range []string{"", "10.0.0.1:8000", "10.0.0.1:8000;sent=", "10.0.0.1:8000;sent=-", "10.0.0.1:8000;sent=-1", "name:8000;sent=1", "-;sent=1", "10.0.0.1;sent=1", "10.0.0.1:8000;sent=1;received=x"} {
		_, err := ParseFailed(s)
		require.ErrorContains(t, err, "reading x-holdgate-failed", s)
	}
}
