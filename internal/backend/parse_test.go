// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/sitemap"
)

func read(text string) (all []Config, err error) {
	err = settings.Rules{Show: settings.Little, Brackets: true}.Parse([]byte(text), func(top settings.Value) {
		top.Fields(map[string]func(settings.Value){"backends": func(v settings.Value) { all = Read(v) }})
	})
	return all, err
}

func TestABackendIsReadWithItsDefaults(t *testing.T) {
	t.Parallel()
	all, err := read(`
backends:
- name: gpu
  url: http://llama.models.svc:8000
  engine: vllm
  health_path: /ready
  models: [llama, sql-lora]
  kinds: [llm, embedding, chat]
  slots: 16
  region: eu
  labels: {gpu: l40s}
  max_wait: 4m
  wake: {url: "https://hooks.example.com/wake?a=b", method: GET, cooldown: 30s}
  api_key_file: keys/gpu
- {name: small, url: "http://192.0.2.1:8000"}
- {name: api, url: "https://llm.example/serve/m", host: "llm:1", sni: inside.example, ca_file: /etc/ca.pem, not_taken: [502, 404], health_model: true}
- {name: mesh, url: "http://mesh", pool: true}
- {name: raw, url: "http://mesh", pool: true, not_taken: []}
- {name: lane, url: "unix:///run/holdgate/pool-qwen.sock"}
`)
	require.NoError(t, err)
	require.Equal(t, []Config{
		{
			Name: "gpu", MaxWait: 4 * time.Minute, APIKeyFile: "keys/gpu", keyLine: 14,
			Wake:       &sitemap.Wake{URL: "https://hooks.example.com/wake?a=b", Method: "GET", Cooldown: 30 * time.Second},
			BackendURL: "http://llama.models.svc:8000", Engine: "vllm", HealthPath: "/ready", Models: []string{"llama", "sql-lora"},
			Kinds: []string{"chat", "embedding"}, Slots: 16, Region: "eu", Labels: map[string]string{"gpu": "l40s"},
		},
		{Name: "small", Config: custom("http://192.0.2.1:8000", agent.Config{})},
		{
			Name: "api", SNI: "inside.example", CAFile: "/etc/ca.pem", NotTaken: []int{502, 404}, caLine: 16,
			Config: custom("https://llm.example/serve/m", agent.Config{Host: "llm:1", HealthModel: true}),
		},
		{Name: "mesh", NotTaken: []int{503}, Config: custom("http://mesh", agent.Config{Pool: true})},
		{Name: "raw", NotTaken: []int{}, Config: custom("http://mesh", agent.Config{Pool: true})},
		{Name: "lane", NotTaken: []int{503}, Config: custom("unix:///run/holdgate/pool-qwen.sock", agent.Config{Pool: true})},
	}, all)
	all, err = read("backends: [{name: b, url: 'http://h', wake: {url: 'http://hooks/b'}}]")
	require.NoError(t, err)
	require.Equal(t, "POST", all[0].Wake.Method)
}

// custom returns c for an engine of which nothing is known, with one slot.
func custom(url string, c agent.Config) agent.Config {
	c.BackendURL, c.Engine, c.Slots = url, "custom", 1
	return c
}

func TestABadBackendIsNamedByPathAndLine(t *testing.T) {
	t.Parallel()
	const secret = "sk-0123456789012345678901234567890123456789"
	for entry, want := range map[string]string{
		`{url: "http://h"}`:                                 "backends[0]: needs name (line 2)",
		`{name: b}`:                                         "backends[0]: needs url (line 2)",
		`{name: b, url: "http://h", x: 1}`:                  "backends[0].x: is not known (line 2)",
		`{name: "", url: "http://h"}`:                       "backends[0].name: must not be empty (line 2)",
		`{name: b, url: "ftp://h"}`:                         `backends[0].url: must be http://host:port or https://host:port, with or without a path, is "ftp://h" (line 2)`,
		`{name: b, url: "unix:///run/a.sock"}`:              `backends[0].url: must be unix:///path/pool-NAME.sock, the lane of a pool, is "unix:///run/a.sock"`,
		`{name: b, url: "unix://h/pool-a.sock"}`:            "backends[0].url: must be unix:///path/pool-NAME.sock",
		`{name: b, url: "http://h/v1"}`:                     "backends[0].url: must not end in /v1",
		`{name: "b#2", url: "http://h"}`:                    "backends[0].name: must not contain #",
		`{name: b, url: "http://h", sni: x}`:                "backends[0].sni: needs a url of https",
		`{name: b, url: "http://h", ca_file: /x}`:           "backends[0].ca_file: needs a url of https",
		`{name: b, url: "https://h", ca_file: x}`:           "backends[0].ca_file: must be an absolute path",
		`{name: b, url: "http://h", host: "a b"}`:           "backends[0].host: must be a host",
		`{name: b, url: "http://h", pool: 1}`:               "backends[0].pool: must be true or false",
		`{name: b, url: "http://h", not_taken: [200]}`:      "backends[0].not_taken[0]: must be a status from 400 to 599",
		`{name: b, url: "http://h", not_taken: 503}`:        "backends[0].not_taken: must be a list",
		`{name: b, url: 1}`:                                 "backends[0].url: must be a string",
		`{name: b, url: "", engine: best}`:                  `backends[0].engine: "best" is not known: use custom, infinity`,
		`{name: b, url: "", health_path: h}`:                "backends[0].health_path: must begin with /",
		`{name: b, url: "", models: m}`:                     "backends[0].models: must be a list",
		`{name: b, url: "", models: [m, m]}`:                `backends[0].models[1]: "m" is given twice`,
		`{name: b, url: "", kinds: [video]}`:                "backends[0].kinds[0]: must be chat, embedding or rerank",
		`{name: b, url: "", kinds: []}`:                     "backends[0].kinds: at least one is needed",
		`{name: b, url: "", kinds: [llm], engine: tei}`:     "backends[0].kinds[0]: tei has no chat",
		`{name: b, url: "", slots: 0}`:                      "backends[0].slots: must be a whole number from 1 to 65536",
		`{name: b, url: "", labels: [a]}`:                   "backends[0].labels: must be a mapping",
		`{name: b, url: "", max_wait: 61m}`:                 `backends[0].max_wait: must be a duration above 0 and at most 1h, such as 240s, is "61m" (line 2)`,
		`{name: b, url: "", max_wait: 0s}`:                  "backends[0].max_wait: must be a duration above 0 and at most 1h",
		`{name: b, url: "", max_wait: -1s}`:                 "backends[0].max_wait: must be a duration above 0 and at most 1h",
		`{name: b, url: "", max_wait: 10}`:                  "backends[0].max_wait: must be a duration above 0 and at most 1h",
		`{name: b, url: "", wake: {}}`:                      "backends[0].wake: needs url",
		`{name: b, url: "", wake: {url: ftp}}`:              "backends[0].wake.url: must be an absolute http or https URL",
		`{name: b, url: "", wake: {method: PUT}}`:           "backends[0].wake.method: must be POST or GET",
		`{name: b, url: "", wake: {cooldown: 2h}}`:          "backends[0].wake.cooldown: must be a duration above 0 and at most 1h",
		`{name: b, url: "", api_key: ` + secret + `}`:       "backends[0].api_key: is not known",
		`{name: b, url: ""}, {name: b, url: ""}`:            `backends[1].name: is given twice: "b" is the name of backends[0]`,
		`{name: ` + strings.Repeat("b", 250) + `, url: ""}`: "backends[0].name: with backend/ before it, must have at most 256 bytes",
	} {
		_, err := read("backends: [\n" + entry + "]")
		require.ErrorContains(t, err, want, entry)
		require.NotContains(t, err.Error(), secret)
	}
	_, err := read("backends: [\n{name: b, url: 'http://h', slots: x},\n{url: 'http://h', max_wait: 2h}]")
	require.ErrorContains(t, err, "backends[0].slots")
	require.ErrorContains(t, err, "backends[1]: needs name")
	require.ErrorContains(t, err, "(line 3)", "all problems at once")
}
