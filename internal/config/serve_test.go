// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/internal/settings"
)

var update = flag.Bool("update", false, "write generated files")

// parse reads flags as the command does.
func parse(t *testing.T, args ...string) (*Serve, *pflag.FlagSet, error) {
	t.Helper()
	c := &Serve{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	return c, set, set.Parse(args)
}

func TestTheDefaultsAreValid(t *testing.T) {
	t.Parallel()
	c, _, err := parse(t)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
}

func TestABadValueNamesItsFlagAndRule(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--wake-hold-budget=0s":                        "--wake-hold-budget is 0s: must be above 0 and at most 1h",
		"--wake-hold-budget=61m":                       "--wake-hold-budget is 1h1m0s: must be above 0 and at most 1h",
		"--wake-hold-max=0":                            "--wake-hold-max is 0: must be above 0",
		"--wake-hold-max-per-key=-1":                   "--wake-hold-max-per-key is -1: must be above 0",
		"--wake-hold-max-total=0":                      "--wake-hold-max-total is 0: must be above 0",
		"--wake-hold-max-bytes=0":                      "--wake-hold-max-bytes is 0: must be above 0",
		"--wake-keepalive=-1s":                         "--wake-keepalive is -1s: must not be negative",
		"--wake-linger=-1s":                            "--wake-linger is -1s: must not be negative",
		"--wake-late-error=maybe":                      "--wake-late-error is maybe: must be auto, body or abort",
		"--wake-order=random":                          "--wake-order is random: must be fair or arrival",
		"--queue-depth=-1":                             "--queue-depth is -1: must not be negative",
		"--request-timeout=0":                          "--request-timeout is 0s: must be above 0",
		"--max-request-bytes=0":                        "--max-request-bytes is 0: must be above 0",
		"--max-body-bytes-total=1KiB":                  "--max-body-bytes-total is 1KiB: must not be below --max-request-bytes",
		"--metrics-prefix=1x":                          "--metrics-prefix is 1x: may have only letters, digits and _",
		"--agents-allow-cidr=10.0.0.0":                 "--agents-allow-cidr is 10.0.0.0: must be a network",
		"--admin-listen=9003":                          "--admin-listen is 9003: must be host:port or unix:///path",
		"--extproc-listen=unix://":                     "--extproc-listen is unix://: must be host:port or unix:///path",
		"--relay=unix:///" + strings.Repeat("x", 107):  "--relay: the path of a unix socket can have at most 107 bytes, and /xxx",
		"--relay=relay.sock":                           "--relay is relay.sock: must be host:port, unix:///path, http://host:port or https://host:port",
		"--relay=ftp://a:1":                            "--relay is ftp://a:1: must be host:port, unix:///path",
		"--relay=https://a/path":                       "--relay is https://a/path: must be host:port, unix:///path",
		"--relay=https://u@a":                          "--relay is https://u@a: must be host:port, unix:///path",
		"--relay=https://gateway.example.com":          "",
		"--relay=http://127.0.0.1:8080/":               "",
		"--relay=http://[::1]":                         "",
		"--relay=http://gateway:8080":                  "--relay is http://gateway:8080: sends callers' keys to another machine unencrypted: use https",
		"--relay-ca-file=a":                            "--relay-ca-file is a: needs an https --relay",
		"--destination=gateway":                        "--destination is gateway: must be replica, route or endpoint",
		"--endpoint-fallbacks=3":                       "--endpoint-fallbacks is 3: must be from 0 to 2",
		"--endpoint-fallbacks=-1":                      "--endpoint-fallbacks is -1: must be from 0 to 2",
		"--destination=route":                          "",
		"--destination=endpoint":                       "",
		"--agent-liveness=0s":                          "--agent-liveness is 0s: must be above 0",
		"--wake-cooldown=-1ns":                         "--wake-cooldown is -1ns: must not be negative",
		"--relay-max-bytes=0":                          "--relay-max-bytes is 0: must be above 0",
		"--shared=localhost:6379":                      "--shared is localhost:6379: must be valkey://host:port/database or unix:///path",
		"--shared=valkey://me:hidden@a":                "--shared is valkey://***@a: has a password",
		"--shared=valkey://:hid/den@a":                 "--shared is valkey://***@a: is not a URL",
		"--takeover-socket=127.0.0.1:9001":             "--takeover-socket is 127.0.0.1:9001: must be unix:///path",
		"--drain-timeout=-1s":                          "--drain-timeout is -1s: must not be negative",
		"--group-grace=-1s":                            "--group-grace is -1s: must not be negative",
		"--registry-grace=-1s":                         "--registry-grace is -1s: must not be negative",
		"--agents-listen=localhost":                    "--agents-listen is localhost: must be host:port",
		"--agents-allow-cidr=10.0.0.0/8":               "",
		"--identity-metadata=auth/claims":              "",
		"--identity-metadata=holdgate":                 "--identity-metadata is holdgate: must be a namespace other than holdgate",
		"--identity-metadata=a/":                       "--identity-metadata is a/: must be a namespace",
		"--forward-authorization":                      "--forward-authorization is true: needs --auth-file or --identity-metadata",
		"--envoy-admin=127.0.0.1:9901":                 "--envoy-admin is 127.0.0.1:9901: must be http://host:port or unix:///path",
		"--envoy-admin=http://a/stats":                 "--envoy-admin is http://a/stats: must be http://host:port or unix:///path",
		"--envoy-admin=unix://":                        "--envoy-admin is unix://: must be http://host:port or unix:///path",
		"--agents-tls-cert-file=a":                     "--agents-tls-cert-file is a: goes with --agents-tls-key-file",
		"--agents-tls-key-file=a":                      "--agents-tls-key-file is a: goes with --agents-tls-cert-file",
		"--agents-client-ca-file=a":                    "--agents-client-ca-file is a: goes with --agents-tls-cert-file",
		"--keda-tls-cert-file=a":                       "--keda-tls-cert-file is a: goes with --keda-tls-key-file",
		"--keda-tls-key-file=a":                        "--keda-tls-key-file is a: goes with --keda-tls-cert-file",
		"--hop-secret-file=a":                          "--hop-secret-file is a: needs --site-id",
		"--log-format=x":                               "--log-format: \"x\" is not known: use text or json",
		"--log-level=trace":                            "--log-level: \"trace\" is not known: use debug, info, warn or error",
		"--cors-origins=*":                             "",
		"--cors-origins=https://a.b,http://[::1]:3000": "",
		"--cors-origins=foo,https://a.b":               "--cors-origins is foo: must be scheme://host or scheme://host:port, as browsers write it, or *",
		"--cors-origins=https://a.b/c":                 "--cors-origins is https://a.b/c: must be",
		"--cors-origins=https://a.b/":                  "--cors-origins is https://a.b/: must be",
		"--cors-origins=https://A.b":                   "--cors-origins is https://A.b: must be",
		"--cors-origins=https://u@a.b":                 "--cors-origins is https://u@a.b: must be",
		"--cors-origins=https://:80":                   "--cors-origins is https://:80: must be",
		"--relay=unix:///run/holdgate/extproc.sock":    "--relay is unix:///run/holdgate/extproc.sock: must not be the address of --extproc-listen as well",
		"--relay=unix:///run//holdgate/extproc.sock":   "must not be the address of --extproc-listen as well",
		"--admin-listen=127.0.0.1:9002":                "--admin-listen is 127.0.0.1:9002: must not be the address of --agents-listen as well",
		"--keda-listen=127.0.0.1:9003":                 "--keda-listen is 127.0.0.1:9003: must not be the address of --admin-listen as well",
	} {
		c, _, err := parse(t, arg)
		require.NoError(t, err, arg)
		if want == "" {
			require.NoError(t, c.Validate(), arg)
		} else {
			require.ErrorContains(t, c.Validate(), want, arg)
		}
	}
	c, _, err := parse(t, "--admin-listen=127.0.0.1:0", "--agents-listen=127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, c.Validate(), "the system chooses two ports")
	for _, arg := range []string{"--shared=valkey://localhost:6379", "--takeover"} {
		c, _, err = parse(t, "--relay=https://gateway.example.com", arg)
		require.NoError(t, err)
		require.ErrorContains(t, c.Validate(), "--relay is https://gateway.example.com: needs --hop-secret-file")
		c, _, err = parse(t, "--relay=https://gateway.example.com", "--hop-secret-file=a", "--site-id=here", arg)
		require.NoError(t, err)
		require.NoError(t, c.Validate())
	}
	c, _, err = parse(t, "--wake-hold-max=0", "--queue-depth=-1")
	require.NoError(t, err)
	require.ErrorContains(t, c.Validate(), "--wake-hold-max")
	require.ErrorContains(t, c.Validate(), "--queue-depth", "all problems at once")
	c, _, err = parse(t, "--forward-authorization", "--auth-file=keys.yaml", "--engine-auth-file=engines.yaml")
	require.NoError(t, err)
	require.ErrorContains(t, c.Validate(), "--forward-authorization is true: does not go with --engine-auth-file")
	c, _, err = parse(t, "--forward-authorization", "--identity-metadata=auth")
	require.NoError(t, err)
	require.NoError(t, c.Validate())
}

func TestPortsThatOthersCanReachMustBeSecured(t *testing.T) {
	t.Parallel()
	const others = " is 10.0.0.1:9, which others can reach: set "
	mutual := []string{"--extproc-listen=10.0.0.1:9", "--extproc-tls-cert-file=a", "--extproc-tls-key-file=a"}
	tls := []string{"--agents-listen=10.0.0.1:9", "--agents-tls-cert-file=a", "--agents-tls-key-file=a"}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"admin":                 {[]string{"--admin-listen=10.0.0.1:9"}, "--admin-listen" + others + "--admin-token-file, or use a loopback address or a unix socket"},
		"admin with token":      {[]string{"--admin-listen=10.0.0.1:9", "--admin-token-file=a"}, ""},
		"every address":         {[]string{"--agents-listen=:9", "--agents-token-file=a"}, "--agents-listen is :9, which others can reach: set --agents-tls-cert-file and --agents-tls-key-file"},
		"name":                  {[]string{"--agents-listen=router:9", "--agents-token-file=a"}, "which others can reach"},
		"agents without TLS":    {[]string{"--agents-listen=10.0.0.1:9", "--agents-token-file=a"}, "--agents-listen" + others + "--agents-tls-cert-file and --agents-tls-key-file, or use"},
		"agents with TLS alone": {tls, "--agents-listen" + others + "--agents-token-file or --agents-client-ca-file, or use"},
		"agents with a token":   {append(tls, "--agents-token-file=a"), ""},
		"agents, mutual":        {append(tls, "--agents-client-ca-file=a"), ""},
		"loopback":              {[]string{"--agents-listen=[::1]:9"}, ""},
		"localhost":             {[]string{"--agents-listen=localhost:9"}, ""},
		"unix socket":           {[]string{"--agents-listen=unix:///a"}, ""},
		"ext_proc":              {[]string{"--extproc-listen=0.0.0.0:9"}, "--extproc-listen is 0.0.0.0:9, which others can reach: set --extproc-tls-cert-file, --extproc-tls-key-file and --extproc-client-ca-file (or --extproc-insecure"},
		"ext_proc, loopback":    {[]string{"--extproc-listen=127.0.0.1:9"}, ""},
		"ext_proc, mutual":      {append(mutual, "--extproc-client-ca-file=a"), ""},
		"ext_proc, names":       {append(mutual, "--extproc-client-ca-file=a", "--extproc-client-names=envoy.test,spiffe://a/b"), ""},
		"ext_proc, a wildcard":  {append(mutual, "--extproc-client-ca-file=a", "--extproc-client-names=*.test"), "--extproc-client-names is *.test: must be a DNS name or a URI, without wildcards"},
		"names without CAs":     {[]string{"--extproc-client-names=envoy.test"}, "--extproc-client-names is envoy.test: goes with --extproc-client-ca-file"},
		"ext_proc, any client":  {mutual, "--extproc-tls-cert-file is a: goes with --extproc-client-ca-file"},
		"ext_proc, insecure":    {[]string{"--extproc-listen=0.0.0.0:9", "--extproc-insecure"}, ""},
		"ext_proc, both":        {append(mutual, "--extproc-client-ca-file=a", "--extproc-insecure"), "--extproc-insecure is true: does not go with --extproc-tls-cert-file"},
		"relay":                 {[]string{"--relay=10.0.0.1:9"}, "--relay is 10.0.0.1:9, which others can reach: set --extproc-insecure"},
		"relay, insecure":       {[]string{"--relay=10.0.0.1:9", "--extproc-insecure"}, ""},
	} {
		serve, _, err := parse(t, c.args...)
		require.NoError(t, err, name)
		if c.want == "" {
			require.NoError(t, serve.Validate(), name)
		} else {
			require.ErrorContains(t, serve.Validate(), c.want, name)
		}
	}
}

func TestAFileSetsWhatTheCommandLineDoesNot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
site-id: from-file
wake-keepalive: 3s
wake-hold-max-bytes: 1MiB
agents-allow-cidr: [10.0.0.0/8, 192.168.0.0/16]
queue-depth: 0
backends:
- {name: gpu, url: "http://gpu.test:8000", models: [m], max_wait: 1h}
`), 0o600))
	c, set, err := parse(t, "--wake-keepalive=7s")
	require.NoError(t, err)
	require.NoError(t, c.ReadFile(path, set))
	require.Equal(t, "from-file", c.SiteID)
	require.Equal(t, "7s", c.WakeKeepalive.String())
	require.Equal(t, settings.Bytes(1<<20), c.WakeHoldMaxBytes)
	require.Equal(t, []string{"10.0.0.0/8", "192.168.0.0/16"}, c.AgentsAllowCIDR)
	require.Zero(t, c.QueueDepth)
	require.Len(t, c.Backends, 1)
	require.Equal(t, time.Hour, c.Backends[0].MaxWait)
}

func TestTheFileOfTheWebhookExampleIsGood(t *testing.T) {
	t.Parallel()
	c, set := &Serve{}, pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(t, c.ReadFile("../../examples/webhook/serve.yaml", set))
	require.NoError(t, c.Validate())
	require.Len(t, c.Backends, 1)
}

func TestTheExampleOfManyRoutersIsGood(t *testing.T) {
	t.Parallel()
	c, set := &Serve{}, pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(t, c.ReadFile("../../examples/many-routers/serve.yaml", set))
	require.NoError(t, c.Validate())

	text, err := os.ReadFile("../../examples/many-routers/kubernetes.yaml")
	require.NoError(t, err)
	checked := 0
	var replicas, unavailable int
	var routers, protected map[string]string // labels
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object struct {
			Kind string
			Spec struct {
				Replicas       int
				MaxUnavailable int `yaml:"maxUnavailable"`
				Selector       struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				}
				Template struct {
					Metadata struct{ Labels map[string]string }
					Spec     struct {
						Containers []struct {
							Name string
							Args []string
						}
					}
				}
			}
		}
		if err := documents.Decode(&object); errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if object.Kind == "PodDisruptionBudget" {
			protected, unavailable = object.Spec.Selector.MatchLabels, object.Spec.MaxUnavailable
		}
		for _, container := range object.Spec.Template.Spec.Containers {
			if container.Name != "router" {
				continue
			}
			c, _, err := parse(t, container.Args...)
			require.NoError(t, err)
			require.NoError(t, c.Validate())
			checked++
			replicas, routers = object.Spec.Replicas, object.Spec.Template.Metadata.Labels
		}
	}
	require.Equal(t, 1, checked)
	require.Equal(t, routers, protected, "the disruption budget is for the routers")
	require.Equal(t, 1, unavailable)
	require.Greater(t, replicas, unavailable)
}

func TestABadFileIsRefusedWithItsLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"siteid: a":                      "serve.yaml: siteid: is not a setting: did you mean site-id? (line 1)",
		"Log_Level: a":                   "Log_Level: is not a setting: did you mean log-level?",
		"unknown: 1":                     "serve.yaml: unknown: is not a setting (line 1)",
		"config: x":                      "config: is not a setting",
		"queue-depth: many":              "serve.yaml: queue-depth:",
		"queue-depth: [1]":               "must be a single value",
		"queue-depth: 1\nqueue-depth":    "reading",
		"queue-depth: 1\nqueue-depth: 2": "queue-depth: is given twice: first in line 1 (line 2)",
		"site-id: a\nbackends:\n- {name: b, url: 'http://h', max_wait: 90m}": "serve.yaml: backends[0].max_wait: must be a duration above 0 and at most 1h, such as 240s, is \"90m\" (line 3)",
		"site-id: a\n---\nsite-id: b":                                        "must hold one YAML document",
	} {
		path := filepath.Join(t.TempDir(), "serve.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, set, err := parse(t)
		require.NoError(t, err)
		require.ErrorContains(t, c.ReadFile(path, set), want, text)
	}
}

func TestTokensComeOneALine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(path, []byte("# old\nfirst\n\n  second \n"), 0o600))
	tokens, err := ReadTokens(path)
	require.NoError(t, err)
	require.Equal(t, []string{"first", "second"}, tokens)
	require.NoError(t, os.WriteFile(path, []byte("# none\n"), 0o600))
	_, err = ReadTokens(path)
	require.ErrorContains(t, err, "has no token: put one on a line")
	_, err = ReadTokens(path + ".missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The flags are documented as they are declared.
func TestTheFlagsAreInTheDocs(t *testing.T) {
	t.Parallel()
	const path = "../../docs/configuration.md"
	const begin, end = "<!-- flags: begin -->\n", "<!-- flags: end -->\n"
	_, set, err := parse(t)
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("| flag | default | what it does |\n| --- | --- | --- |\n")
	set.SortFlags = false
	set.VisitAll(func(f *pflag.Flag) {
		value := f.DefValue
		if value == "" || value == "[]" {
			value = "none"
		}
		fmt.Fprintf(&table, "| `--%s` | `%s` | %s |\n", f.Name, value, f.Usage)
	})
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := before + begin + table.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "run: go test ./internal/config -update")
}

func TestAFileThatSaysNothingIsFine(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# nothing\n", "---\n", "null\n"} {
		path := filepath.Join(t.TempDir(), "serve.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, set, err := parse(t)
		require.NoError(t, err)
		require.NoError(t, c.ReadFile(path, set), "%q", text)
		require.NoError(t, c.Validate())
	}
}

func TestAnEmptyEnvironmentVariableCountsAsUnset(t *testing.T) {
	t.Setenv(parkVariable, "")
	c, set, err := parse(t)
	require.NoError(t, err)
	require.NoError(t, ReadEnvironment(set))
	require.Equal(t, 250*time.Millisecond, c.AdmitParkTimeout)
}

func TestTheSocketForTakeovers(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"":                            {"--takeover-socket=unix:///a/b.sock"},
		"/run/holdgate/takeover.sock": {"--takeover"},
		"/a/takeover.sock":            {"--takeover", "--extproc-listen=unix:///a/e.sock"},
		"/a/b.sock":                   {"--takeover", "--extproc-listen=127.0.0.1:9001", "--takeover-socket=unix:///a/b.sock"},
	} {
		c, _, err := parse(t, args...)
		require.NoError(t, err)
		require.NoError(t, c.Validate())
		require.Equal(t, want, c.TakeoverPath())
	}
	directory := "/" + strings.Repeat("a", 85) // with takeover.sock and the id of a process it is one byte too long
	for _, args := range [][]string{
		{"--takeover", "--extproc-listen=unix://" + directory + "/e.sock"}, {"--takeover", "--takeover-socket=unix://" + directory + "/takeover.sock"},
	} {
		c, _, err := parse(t, args...)
		require.NoError(t, err)
		require.ErrorContains(t, c.Validate(), "use a shorter directory")
		c.ExtProcListen, c.TakeoverSocket = strings.ReplaceAll(c.ExtProcListen, "/aa", "/a"), strings.ReplaceAll(c.TakeoverSocket, "/aa", "/a")
		require.NoError(t, c.Validate())
	}
	c, _, err := parse(t, "--takeover", "--extproc-listen=127.0.0.1:9001")
	require.NoError(t, err)
	require.ErrorContains(t, c.Validate(), "--takeover is true: needs --takeover-socket, since --extproc-listen is not a unix socket")
}
