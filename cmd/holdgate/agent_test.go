// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
)

func runAgent(t *testing.T, args ...string) error {
	t.Helper()
	cmd := newAgentCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&bytes.Buffer{})
	cmd.SetErr(io.Discard)
	return cmd.ExecuteContext(t.Context())
}

func TestAgentCommandNamesTheBadFlags(t *testing.T) {
	t.Parallel()
	good := []string{"--router", "127.0.0.1:1", "--backend-url", "http://127.0.0.1:1", "--model", "m"}
	cases := map[string]struct {
		args []string
		want string
	}{
		"nothing given": {nil, "--router: is required\n--backend-url: is required"},
		"bad quoting":   {append(good, "--exec", "engine 'x"), "--exec: "},
		"blank exec":    {append(good, "--exec", " "), "--exec: names no command"},
		"no program":    {append(good, "--exec", "nosuch --port 1"), `--exec: "nosuch" is not a program here or on PATH`},
		"no directory":  {append(good, "--exec", "sh", "--exec-dir", "/nope"), `--exec-dir: "/nope" is not a directory`},
		"nor a program": {append(good, "--exec", "./sh", "--exec-dir", "/nope"), `--exec-dir: "/nope" is not a directory`},
		"bad labels":    {append(good, "--label", "a", "--label", "b=1", "--label", "b=2"), "--label: must be name=value, each name once, is \"a\"\n--label: must be name=value, each name once, is \"b=2\""},
		"no token file": {append(good, "--token-file", "/nonexistent"), "--token-file: reading the token: "},
		"no key file":   {append(good, "--api-key-file", "sk-pasted"), "--api-key-file: must name a file with the key: no such file or directory"},
		"log format":    {append(good, "--log-format", "xml"), `--log-format: "xml" is not known`},
		"engine":        {append(good, "--engine", "gpt"), `--engine: "gpt" is not known: use custom, infinity, llamacpp, ollama, sglang, tei, vllm`},
		"capability":    {append(good, "--engine", "tei", "--capability", "llm"), "--capability: tei has no llm"},
		"warm-up":       {append(good, "--engine", "tei", "--warmup"), "--warmup: is a chat completion: it needs --capability llm"},
		"unhealthy":     {append(good, "--unhealthy-after", "-1"), "--unhealthy-after: must be at least 1, is -1"},
		"asleep":        {[]string{"--router", "127.0.0.1:1", "--backend-url", "http://127.0.0.1:1", "--exec", "sh"}, "--model: is required with --exec"},
		"no authority":  {append(good, "--tls-ca-file", "/nonexistent"), "--tls-ca-file: reading the authorities: "},
		"half a pair":   {append(good, "--tls", "--tls-key-file", "a"), "--tls-key-file: goes with --tls-cert-file"},
		"no room":       {append(good, "--group", "gpu0", "--group-max-awake", "0"), "--group-max-awake: must be at least 1, is 0"},
		"two rooms":     {append(good, "--group", "gpu0", "--group-max-awake", "1", "--group-memory", "24GiB"), "--group-max-awake and --group-memory: only one of them can be given"},
		"no group":      {append(good, "--group-memory", "24GiB"), "--group: is required with"},
		"too large":     {append(good, "--group", "gpu0", "--group-memory", "24GiB", "--memory", "25GiB"), "--memory: must be between 1 and --group-memory"},
		"idle time":     {append(good, "--idle-timeout", "1m"), "--idle-timeout: needs --exec"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := runAgent(t, c.args...)
			var usage usageError
			require.ErrorAs(t, err, &usage)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestAgentFlagsBecomeAConfig(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	f := agentFlags{tokenFile: token, exec: `sh --name "a b" $HOME`, labels: []string{"gpu=h100", "note=a=b", "empty="}}
	cfg := agent.Config{Models: []string{"llama"}}
	require.NoError(t, f.complete(newAgentCommand().Flags(), &cfg))
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, host+"-llama", cfg.ID)
	for _, want := range []string{"secret", "another"} {
		require.NoError(t, os.WriteFile(token, []byte(want+"\n"), 0o600))
		got, err := cfg.Token()
		require.NoError(t, err)
		require.Equal(t, want, got, "it is read again at each connection")
	}
	require.Equal(t, agent.DefaultMinUpTime, cfg.MinUpTime)
	require.Equal(t, []string{"sh", "--name", "a b", "$HOME"}, cfg.Exec)
	require.Equal(t, map[string]string{"gpu": "h100", "note": "a=b", "empty": ""}, cfg.Labels)
}

// The engine is asked with its key: one that wants it would never be healthy.
func TestAnAgentAsksItsEngineWithTheKeyOfTheFile(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Header.Get("Authorization"):
		default:
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(engine.Close)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("secret\n"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cmd := newAgentCommand()
	cmd.SetArgs([]string{"--router", "unix://" + filepath.Join(t.TempDir(), "none.sock"), "--backend-url", engine.URL, "--model", "m", "--api-key-file", key})
	cmd.SetErr(io.Discard)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	require.Equal(t, "Bearer secret", <-asked)
	cancel()
	require.NoError(t, <-ended)
}

func TestAgentHasANameWithoutModels(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	require.NoError(t, err)
	for backend, want := range map[string]string{"http://127.0.0.1:8000": "8000", "http://engine": "vllm", "": "vllm"} {
		cfg := agent.Config{BackendURL: backend, Engine: engines.VLLM}
		require.NoError(t, (&agentFlags{}).complete(newAgentCommand().Flags(), &cfg))
		require.Equal(t, host+"-"+want, cfg.ID)
	}
}

func TestTokenFileMustHoldOneToken(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"empty": " \n", "two lines": "a\nb\n", "not ASCII": "ä"} {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := readToken(path)
		require.ErrorContains(t, err, "must hold one token", name)
	}
}

// A named pipe as the file of an agent's token must not hang the start.
func TestAPipeIsNoTokenFileOfAnAgent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	err := (&agentFlags{tokenFile: path}).complete(newAgentCommand().Flags(), &agent.Config{Models: []string{"m"}})
	require.ErrorContains(t, err, "--token-file: ")
	require.ErrorContains(t, err, "is not a regular file")
}
