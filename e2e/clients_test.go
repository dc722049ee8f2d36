// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// client runs one of the client scripts and returns the line it prints.
func client(t *testing.T, command ...string) map[string]any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var line map[string]any
	require.NoError(t, json.Unmarshal(out, &line), "%v %s %s", err, out, &stderr)
	return line
}

// python returns the interpreter that has the official packages.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("HOLDGATE_PYTHON")
	require.NotEmpty(t, path, "HOLDGATE_PYTHON is the Python with the client packages: run `make e2e`")
	return path
}

// node returns the command of the Node client; without Node the test is skipped with a
// message.
func node(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		fmt.Fprintln(os.Stderr, "=====> SKIPPED: the tests with Node's client packages, because there is no node on PATH")
		t.Skip("no node")
	}
	require.DirExists(t, "clients/node/node_modules", "run `make tools-test`")
	return path
}

// realSite starts a site with a real model that is asleep at first and when idle.
func realSite(t *testing.T, idle time.Duration, flags ...string) (url string, asleep func()) {
	t.Helper()
	file := upFile(t, idle.String())
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, f := range flags {
		text = fmt.Appendf(text, "%s\n", f)
	}
	require.NoError(t, os.WriteFile(file, text, 0o600))
	p := start(t, "up", "-f", file)
	url = p.waitLog(`Holdgate listens on (http://\S+);`)[1]
	s := &site{t: t, url: url, http: newHTTPClient(t)}
	return url, func() {
		s.eventually("asleep", func() bool {
			return strings.Contains(s.do(s.request(t.Context(), "GET", "/v1/models/smollm2", "")).body, `"asleep"`)
		})
	}
}

// The official clients work with a real model, cold and warm, streaming and not.
func TestOfficialClients(t *testing.T) {
	script := filepath.Join("clients", "python", "chat.py")
	commands := map[string][]string{
		"openai python":    {python(t), script, "--api", "openai"},
		"anthropic python": {python(t), script, "--api", "anthropic"},
		"openai node":      {"node", filepath.Join("clients", "node", "chat.mjs")},
	}
	for _, keepalive := range []string{"15s", "100ms"} {
		// With the short interval the answers begin with keepalives.
		url, asleep := realSite(t, time.Second, "serve: {wake-keepalive: "+keepalive+"}")
		for name, command := range commands {
			for _, stream := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, stream %t, keepalive %s", name, stream, keepalive), func(t *testing.T) {
					if command[0] == "node" {
						command[0] = node(t)
					}
					args := append(slices.Clone(command), "--base-url", url, "--model", "smollm2")
					if stream {
						args = append(args, "--stream")
					}
					asleep()
					for _, state := range []string{"cold", "warm"} {
						line := client(t, args...)
						require.NotEmpty(t, line["text"], "%s: %v", state, line)
						if stream {
							require.Greater(t, line["chunks"], 1.0, "%s: %v", state, line)
						}
					}
				})
			}
		}
	}
}
