// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
)

func TestValidateNamesTheFlag(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		edit func(c *Config)
		want string
	}{
		"good":                 {func(*Config) {}, ""},
		"no router":            {func(c *Config) { c.Routers = nil }, "--router: is required"},
		"router without port":  {func(c *Config) { c.Routers = []string{"localhost"} }, `--router: must be host:port or unix:///path, is "localhost"`},
		"router port 0":        {func(c *Config) { c.Routers = []string{"localhost:0"} }, `--router: "localhost:0": the port must be between 1 and 65535, is "0"`},
		"relative socket":      {func(c *Config) { c.Routers = []string{"unix://a"} }, `--router: "unix://a" must have the form unix:///path`},
		"socket":               {func(c *Config) { c.Routers = []string{"unix:///a"} }, ""},
		"IPv6 router":          {func(c *Config) { c.Routers = []string{"[::1]:9002"} }, ""},
		"no id":                {func(c *Config) { c.ID = "" }, "--id: is required"},
		"unknown engine":       {func(c *Config) { c.Engine = "gpt" }, `--engine: "gpt" is not known: use custom, infinity, llamacpp, ollama, sglang, tei, vllm`},
		"no backend":           {func(c *Config) { c.BackendURL = "" }, "--backend-url: is required"},
		"backend scheme":       {func(c *Config) { c.BackendURL = "https://127.0.0.1:1" }, `--backend-url: must be http://host:port, is "https://127.0.0.1:1"`},
		"backend, no scheme":   {func(c *Config) { c.BackendURL = "127.0.0.1:8000" }, `--backend-url: must be http://host:port, is "127.0.0.1:8000"`},
		"backend path":         {func(c *Config) { c.BackendURL = "http://127.0.0.1:1/v1" }, `--backend-url: must have nothing but scheme, host and port, is "http://127.0.0.1:1/v1"`},
		"backend without port": {func(c *Config) { c.BackendURL = "http://127.0.0.1" }, ""},
		"health path":          {func(c *Config) { c.HealthPath = "health" }, `--health-path: must begin with /, is "health"`},
		"no model":             {func(c *Config) { c.Models = nil }, ""},
		"no model, asleep":     {func(c *Config) { c.Models, c.Exec = nil, []string{"x"} }, "--model: is required with --exec: an engine that sleeps cannot be asked for its models"},
		"many models":          {func(c *Config) { c.Models = manyNames(257) }, "--model: at most 256, are 257"},
		"model twice":          {func(c *Config) { c.Models = []string{"m", "m"} }, `--model: "m" is given twice`},
		"bad model":            {func(c *Config) { c.Models = []string{"a\n"} }, "--model: must not contain control characters"},
		"no capability":        {func(c *Config) { c.Kinds = nil }, ""},
		"impossible kind":      {func(c *Config) { c.Engine, c.Kinds = engines.Ollama, []string{"llm", "reranker"} }, "--capability: ollama has no reranker"},
		"impossible warm-up":   {func(c *Config) { c.Kinds, c.Warmup = []string{"embedding"}, new(true) }, "--warmup: is a chat completion: it needs --capability llm"},
		"usual kind, warm-up":  {func(c *Config) { c.Engine, c.Kinds, c.Warmup = engines.TEI, nil, new(true) }, "--warmup: is a chat completion: it needs --capability llm"},
		"needless warm-up off": {func(c *Config) { c.Engine, c.Kinds, c.Warmup = engines.TEI, nil, new(false) }, ""},
		"unhealthy after":      {func(c *Config) { c.UnhealthyAfter = -1 }, "--unhealthy-after: must be at least 1, is -1"},
		"unknown capability":   {func(c *Config) { c.Kinds = []string{"LLM"} }, `--capability: "LLM" is not a capability: use llm, embedding or reranker`},
		"no capacity":          {func(c *Config) { c.Slots = 0 }, "--capacity: must be between 1 and 65536, is 0"},
		"bad region":           {func(c *Config) { c.Region = "\x01" }, "--region: must not contain control characters"},
		"bad label":            {func(c *Config) { c.Labels = map[string]string{"a": "\n"} }, `--label "a": must not contain control characters`},
		"label without name":   {func(c *Config) { c.Labels = map[string]string{"": "b"} }, `--label "": the name is required`},
		"negative time":        {func(c *Config) { c.WakeTimeout = -1 }, "--wake-timeout: must not be negative, is -1ns"},
		"idle without exec":    {func(c *Config) { c.IdleTimeout = 1 }, "--idle-timeout: needs --exec: without it the agent does not start the engine"},
		"env without exec":     {func(c *Config) { c.Env = []string{"A=b"} }, "--exec-env: needs --exec: without it the agent does not start the engine"},
		"bad env":              {func(c *Config) { c.Exec, c.Env = []string{"x"}, []string{"A"} }, `--exec-env: must be NAME=value, is "A"`},
		"router elsewhere":     {func(c *Config) { c.Routers = []string{"10.0.0.1:1"} }, "--router: 10.0.0.1 is not on this machine: without --tls or --tls-ca-file only loopback addresses and unix sockets are allowed"},
		"the same with TLS":    {func(c *Config) { c.Routers, c.TLS.On = []string{"10.0.0.1:1"}, true }, ""},
		"TLS name without TLS": {func(c *Config) { c.TLS.ServerName = "a" }, "--tls-server-name: needs --tls or --tls-ca-file"},
		"pair without TLS":     {func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "a", "b" }, "--tls-cert-file: needs --tls or --tls-ca-file\n--tls-key-file: needs --tls or --tls-ca-file"},
		"certificate alone":    {func(c *Config) { c.TLS.On, c.TLS.CertFile = true, "a" }, "--tls-cert-file: goes with --tls-key-file"},
		"key alone":            {func(c *Config) { c.TLS.On, c.TLS.KeyFile = true, "a" }, "--tls-key-file: goes with --tls-cert-file"},
		"no such authority":    {func(c *Config) { c.TLS.CAFile = "/none" }, "--tls-ca-file: reading the authorities: open /none: no such file or directory"},
		"no authority in it":   {func(c *Config) { c.TLS.CAFile = "/dev/null" }, "--tls-ca-file: reading the authorities: /dev/null has no certificate in PEM"},
		"no such pair":         {func(c *Config) { c.TLS = TLS{On: true, CertFile: "/none", KeyFile: "/none"} }, "--tls-cert-file: reading the certificate and its key: open /none: no such file or directory"},
		"negative drain time":  {func(c *Config) { c.DrainTimeout = -1 }, "--drain-timeout: must not be negative, is -1ns"},
		"two problems":         {func(c *Config) { c.ID, c.Slots = "", -1 }, "--id: is required\n--capacity: must be between 1 and 65536, is -1"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newNetwork(t).config()
			tc.edit(&c)
			err := c.Validate()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tc.want)
		})
	}
}

func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return names
}

func TestBackendIsResolvedToOneAddress(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"http://127.0.0.1":               "127.0.0.1:80",
		"http://[::1]:8000":              "[::1]:8000",
		"http://[::ffff:127.0.0.1]:8000": "127.0.0.1:8000",
		"http://0.0.0.0:8000/":           "0.0.0.0:8000",
	} {
		u, err := parseBackend(in)
		require.NoError(t, err)
		at, err := (&Config{}).resolve(t.Context(), u)
		require.NoError(t, err)
		require.Equal(t, want, at[0].String())
	}
	_, err := (&Config{}).resolve(t.Context(), &url.URL{Host: "name.invalid:80"})
	require.ErrorContains(t, err, "resolving name.invalid")
}

func TestUnspecifiedBackendIsCheckedOnLoopback(t *testing.T) {
	t.Parallel()
	cfg := newNetwork(t).config()
	cfg.BackendURL = "http://0.0.0.0:8000"
	a, err := newAgent(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, "0.0.0.0:8000", a.core.address)
	require.Equal(t, "127.0.0.1:8000", a.engineAddress().String())
}

func TestLinesArePrefixed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := &lineWriter{to: &out, prefix: "[a] ", tail: &outputTail{}}
	for _, s := range []string{"one\r\ntw", "o\n\n", "last words", "  \n \n", strings.Repeat("x", maxLine), "yz"} {
		n, err := w.Write([]byte(s))
		require.NoError(t, err)
		require.Equal(t, len(s), n)
	}
	w.flush()
	w.flush()
	require.Equal(t, "[a] one\n[a] two\n[a] \n[a] last words  \n[a]  \n[a] "+strings.Repeat("x", maxLine)+"\n[a] yz\n", out.String())
}
