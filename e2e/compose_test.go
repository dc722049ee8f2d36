// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/internal/polltest"
)

// composeService is a service of a compose file.
type composeService struct {
	Command     []string
	Healthcheck struct{ Test []string }
}

// composed runs the services of examples/compose as processes, in another directory and on other
// ports.
type composed struct {
	t        *testing.T
	services map[string]composeService
	replace  *strings.Replacer
}

// args returns the arguments of a service.
func (c *composed) args(name string) []string {
	var args []string
	for _, a := range c.services[name].Command {
		args = append(args, c.replace.Replace(a))
	}
	return args
}

// healthy runs the health check of a service as Docker does.
func (c *composed) healthy(name string) error {
	test := c.services[name].Healthcheck.Test
	words := slices.Clone(test[1:])
	if test[0] == "CMD-SHELL" {
		words = []string{"/bin/sh", "-c", test[1]}
	}
	for i, w := range words {
		words[i] = c.replace.Replace(strings.ReplaceAll(w, "$$", "$"))
	}
	out, err := exec.CommandContext(c.t.Context(), words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// The commands and health checks of the compose file work, and a request wakes the engine. Docker
// is not needed.
func TestTheServicesOfTheComposeFile(t *testing.T) {
	folder := filepath.Join(root(t), "examples", "compose")
	text, err := os.ReadFile(filepath.Join(folder, "compose.yaml"))
	require.NoError(t, err)
	var file struct{ Services map[string]composeService }
	require.NoError(t, yaml.Unmarshal(text, &file))
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	port := func() string {
		t.Helper()
		_, port, err := net.SplitHostPort(closedPort(t))
		require.NoError(t, err)
		return port
	}
	edge, admin, agents, engine := port(), port(), port(), port()
	binary := filepath.Join(root(t), "bin", "holdgate")
	c := &composed{t: t, services: file.Services, replace: strings.NewReplacer(
		"/run/holdgate", dir, "/etc/holdgate", folder, "/usr/local/bin/holdgate", binary,
		"/app/llama-server --model /models/model.gguf --host 127.0.0.1 --port 8000 --parallel 2",
		python(t)+" tools/llama_server.py --alias local --port "+engine,
		":9003", ":"+admin, "/9003", "/"+admin, "/8080", "/"+edge, ":9002", ":"+agents, ":8000", ":"+engine,
	)}
	require.Error(t, c.healthy("holdgate"))
	start(t, append(c.args("holdgate"), "--extproc-listen=unix://"+dir+"/extproc.sock", "--relay=unix://"+dir+"/relay.sock",
		"--admin-listen=127.0.0.1:"+admin, "--agents-listen=127.0.0.1:"+agents)...)
	eventually := func(name string) {
		t.Helper()
		polltest.Until(t, name+" is healthy", func() bool { return c.healthy(name) == nil })
	}
	eventually("holdgate")
	require.NoError(t, start(t, append(c.args("map"), "--admin=http://127.0.0.1:"+admin)...).ends())
	require.NoError(t, start(t, append(c.args("render"), "--lanes-dir="+dir, "--edge-listen=127.0.0.1:"+edge)...).ends())
	require.Error(t, c.healthy("envoy"))
	startProgram(t, os.Getenv("HOLDGATE_ENVOY"), c.args("envoy")...)
	eventually("envoy")
	require.Error(t, c.healthy("engine"))
	agent := start(t, c.args("engine")...)
	eventually("engine")

	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	r, err := client.Post("http://127.0.0.1:"+edge+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"local","max_tokens":4,"messages":[{"role":"user","content":"Say hello."}]}`))
	require.NoError(t, err)
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode, "%s", answer)
	require.Contains(t, string(answer), `"choices"`)
	require.NoError(t, agent.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, agent.ends(), "it stops the engine")
}
