// SPDX-License-Identifier: Apache-2.0

package up

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent"
)

func TestAFileIsRead(t *testing.T) {
	t.Parallel()
	f, err := parse([]byte(`
listen: 127.0.0.1:80
serve: {wake-keepalive: 300ms, wake-hold-max: 7}
groups:
  gpu0: {memory: 24GiB}
models:
- {name: a, exec: "sh -c 'run {port}'"}
- name: b
  kinds: [embedding, rerank]
  engine: vllm
  exec: sh
  dir: /tmp
  env: {A: b, N: 1, PORT: "{port}"}
  health_path: /up
  slots: 4
  idle_timeout: 10s
  wake_timeout: 1m
  hold_budget: 2m
  group: gpu0
  memory: 14GiB
- {name: c, exec: "sh {port}", min_up_time: 0s, group: gpu1}
- {name: d, exec: "sh {port}", group: gpu1, max_awake: 2}
`))
	require.NoError(t, err)
	chat := []string{"chat"}
	require.Equal(t, &File{
		Listen: "127.0.0.1:80",
		Serve:  map[string]string{"wake-keepalive": "300ms", "wake-hold-max": "7"},
		Models: []Model{
			{
				Name: "a", Kinds: chat, Engine: "custom", Slots: 1, Exec: []string{"sh", "-c", "run {port}"},
				IdleTimeout: 5 * time.Minute, MinUpTime: 30 * time.Second, WakeTimeout: 290 * time.Second,
			},
			{
				Name: "b", HoldBudget: 2 * time.Minute, Kinds: []string{"embedding", "rerank"}, Engine: "vllm", Dir: "/tmp",
				Env: []string{"A=b", "N=1", "PORT={port}"}, HealthPath: "/up", Slots: 4, Exec: []string{"sh"},
				IdleTimeout: 10 * time.Second, MinUpTime: 10 * time.Second, WakeTimeout: time.Minute,
				Group: agent.Group{Name: "gpu0", TotalMemory: 24 << 30, Memory: 14 << 30},
			},
			{
				Name: "c", Kinds: chat, Engine: "custom", Slots: 1, Exec: []string{"sh", "{port}"},
				IdleTimeout: 5 * time.Minute, WakeTimeout: 290 * time.Second,
				Group: agent.Group{Name: "gpu1", MaxAwake: 2},
			},
			{
				Name: "d", Kinds: chat, Engine: "custom", Slots: 1, Exec: []string{"sh", "{port}"},
				IdleTimeout: 5 * time.Minute, MinUpTime: 30 * time.Second, WakeTimeout: 290 * time.Second,
				Group: agent.Group{Name: "gpu1", MaxAwake: 2},
			},
		},
	}, f)
}

func TestAFileThatIsWrongNamesThePlace(t *testing.T) {
	t.Parallel()
	const a = `models: [{name: a, exec: "sh {port}"`
	for text, want := range map[string]string{
		"":                                   "must not be empty",
		"listen: 127.0.0.1:80":               "needs models, or backends (line 1)",
		"models: []":                         "models: at least one is needed (line 1)",
		"models: [{name: a}]":                "models[0]: needs exec (line 1)",
		a + "}]\nlisten: here":               `listen: must be ip:port, such as 127.0.0.1:8080, is "here" (line 2)`,
		a + ", exce: x}]":                    "models[0].exce: is not known (line 1)",
		a + "}, {name: a, exec: sh}]":        `models[1].name: "a" is given twice (line 1)`,
		`models: [{name: a, exec: "'"}]`:     `models[0].exec: must be a command with its arguments, is "'" (line 1)`,
		"models: [{name: a, exec: /none/x}]": `models[0].exec: "/none/x" is not a program here or on PATH (line 1)`,
		a + ", slots: 0}]":                   `models[0].slots: must be a whole number from 1 to 65536, is the int "0" (line 1)`,
		a + ", hold_budget: 2h}]":            `models[0].hold_budget: must be a time such as 90s or 5m, at least 1s and at most 1h0m0s, is "2h" (line 1)`,
		a + ", idle_timeout: 0s}]":           `models[0].idle_timeout: must be a time`,
		a + ", kinds: [text]}]":              `models[0].kinds[0]: must be chat, embedding or rerank, is "text" (line 1)`,
		a + "}]\nserve: {map-file: /x}":      "serve.map-file: is not for this file to set: holdgate up does (line 2)",
		a + ", health_path: up}]":            `models[0].health_path: must begin with /, is "up" (line 1)`,
		a + `, env: {"": x}}]`:               "is not a valid environment variable (line 1)",
		a + `, env: {A: "x\0"}}]`:            "models[0].env.A: is not a valid environment variable (line 1)",
		a + ", env: {A=B: x}}]":              `models[0].env."A=B": is not a valid environment variable (line 1)`,
		a + ", max_awake: 1}]":               "models[0]: has max_awake or memory, and no group (line 1)",
		a + ", group: g, max_awake: 0}]":     "models[0].max_awake: must be a whole number from 1 to 65536",
		a + ", group: g, max_awake: 1},\n{name: b, exec: sh, group: g, max_awake: 2}]": "models[1]: max_awake is 2, and line 1 says something else for group g (line 2)",
		a + ", group: g, memory: 1GiB}]":                                               "models[0]: has memory, but group g counts its models: give groups.g.memory instead of max_awake (line 1)",
		a + "}]\ngroups: {g: {max_awake: 1}}":                                          "groups.g: no model has group: g (line 2)",
		a + ", group: g}]\ngroups: {g: {memory: 8GiB}}":                                "models[0]: needs memory: what the model takes of the 8GiB of group g (line 1)",
		a + ", group: g, memory: 9GiB}]\ngroups: {g: {memory: 8GiB}}":                  "models[0]: takes 9GiB of memory, more than the 8GiB of group g (line 1)",
		a + ", group: g, memory: x}]\ngroups: {g: {memory: 8GiB}}":                     `models[0].memory: must be a size such as 24GiB, is "x" (line 1)`,
		a + ", group: g}]\ngroups: {g: {memory: 8GiB, max_awake: 1}}":                  "groups.g: has max_awake and memory: only one of them can be given (line 2)",
		"models: [{name: a, exec: sh}]":                                                "models[0].exec: has no {port}, and env has none: the engine must listen on the port that it is given (line 1)",
		a + ", dir: /nope}]":                                                           `models[0].dir: "/nope" is not a directory (line 1)`,
		a + ", dir: /dev/null}]":                                                       `models[0].dir: "/dev/null" is not a directory (line 1)`,
	} {
		_, err := parse([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

func TestLogOfAModelIsAFileThatCanBeMade(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a/b", "..", strings.Repeat("x", 256), strings.Repeat("/", 256)} {
		require.NoError(t, os.WriteFile(filepath.Join(t.TempDir(), logName(name)), nil, 0o600), name)
	}
	require.Equal(t, "a%2Fb.log", logName("a/b"))
}
