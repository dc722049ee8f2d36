// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The parts of a site end and start again, and its other routers serve on.
func TestARouterThatDiesLeavesTheOthersServing(t *testing.T) {
	rs := startRouters(t, 3)
	c, e := newCounter(t, 0)
	rs.agent("engine", e.addr(), 4)
	ask := func(rs ...*router) {
		t.Helper()
		for _, r := range rs {
			answer := r.post(chatPath, chatBody("m", false), "X-Of", r.url)
			require.Equal(t, http.StatusOK, answer.status, answer.body)
		}
	}
	ask(rs.all...)
	dead := rs.all[0]
	dead.kill()
	require.Equal(t, http.StatusServiceUnavailable, dead.post(chatPath, chatBody("m", false)).status)
	ask(rs.all[1:]...)
	dead.serve()
	dead.ready()
	dead.knows("engine")
	dead.killEnvoy()
	dead.startEnvoy()
	rs.valkey.Stop()
	ask(rs.all...)
	rs.valkey.Restart()
	for _, r := range rs.all {
		r.metric("hivenet_shared_up", "1")
		r.metric("hivenet_shared_routers", "3")
	}
	ask(rs.all...)
	require.Equal(t, map[string]int{dead.url: 3, rs.all[1].url: 4, rs.all[2].url: 4}, c.answered)
	for _, r := range rs.all {
		r.metric(`hivenet_agent_slots_in_use{agent_id="engine"}`, "0")
	}
}

func TestTheManyRoutersExample(t *testing.T) {
	program := filepath.Join(root(t), "examples", "many-routers", "run.sh")
	t.Run("once", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "--once")
		out, err := cmd.Output()
		require.NoError(t, err, string(out))
		require.Equal(t, "edge 1 answers\nedge 2 answers\nedge 3 answers\nrouter 1 is killed\nedge 2 answers\nedge 3 answers\n", string(out))
	})
	t.Run("the lines that it prints", func(t *testing.T) {
		p := startProgram(t, program)
		p.waitLog("Ctrl-C ends everything")
		text, _, _ := strings.Cut(p.out.String(), "Kill a router")
		kills := p.waitLog(`\n  (kill -9 \d+)\n  (kill -9 \d+)\n`)[1:]
		says := map[string]string{"curl http": `"content"`, "curl --silent": "hivenet_shared_routers 3", "bin/holdgate status": "engine-2 ", "bin/holdgate map push": "generation 1", "bin/holdgate map get": `"smollm2"`}
		ran := 0
		for line := range strings.Lines(text) {
			for begin, answer := range says {
				if strings.HasPrefix(line, "  "+begin) {
					require.Contains(t, shell(t, line), answer, line)
					ran++
				}
			}
		}
		require.Equal(t, 7, ran, text)
		for _, line := range kills {
			shell(t, line)
		}
		p.waitLog("router 1 runs again")
		p.waitLog("Valkey runs again")
		all := children(t, p.cmd.Process.Pid, "")
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		require.NoError(t, p.ends())
		gone(t, all)
	})
}

// shell runs a line that an example prints, and returns its output.
func shell(t *testing.T, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = root(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
	return string(out)
}
