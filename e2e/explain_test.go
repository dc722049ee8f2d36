// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// command runs bin/holdgate against a site's admin API and returns its output.
func (s *site) command(args ...string) string {
	s.t.Helper()
	p := start(s.t, append(args, "--admin", "http://"+s.app.AdminAddr())...)
	require.NoError(s.t, p.ends(), p.out.String())
	return p.out.String()
}

// The verdict of explain is what then happens to the request.
func TestExplainTellsWhatHappensThen(t *testing.T) {
	a, b := twoSites(t, "--auth-file", keysFile(t, ""), "--hop-secret-file", secretFile(t))
	a.pushMapOf(a, b, hint("b", "warm"))
	b.pushMapOf(a, b, "")
	noFollow(a)
	explain := func(s *site, model string) (decision string, status int) {
		var e struct {
			Decision string
			Status   int
		}
		require.NoError(t, json.Unmarshal([]byte(s.command("explain", "--model", model, "--key", "acme-prod", "--json")), &e))
		return e.Decision, e.Status
	}
	ask := func(s *site, model string) result {
		return s.post(chatPath, chatBody(model, false), "X-Api-Key", apiKey)
	}

	decision, status := explain(a, "m")
	require.Equal(t, "redirect", decision)
	require.Equal(t, status, ask(a, "m").status)
	require.Contains(t, a.command("explain", "--model", "m", "--key", "acme-prod"), "redirect: 307 to b at http://localhost:")

	decision, status = explain(a, "none")
	require.Equal(t, "refuse", decision)
	require.Equal(t, status, ask(a, "none").status)

	a.pushMapOf(a, b, hint("b", "cold"))
	decision, _ = explain(a, "m")
	require.Equal(t, "hold", decision)
	a.metric(`hivenet_wake_wanted{model="m"}`, "0") // explain wakes nothing
	answer := a.start(t.Context(), chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	a.metric(`hivenet_pending_demand{model="m"}`, "1")
	text := a.command("status")
	require.Regexp(t, `(?m)^router +ready$`, text)
	require.Regexp(t, `(?m)^m +waking +0 +0 +no +1 +yes +replica +starting for \ds$`, text)

	e := newEngine(t, nil)
	a.register(hello("a-1", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	decision, _ = explain(a, "m")
	require.Equal(t, "serve", decision)
	require.Equal(t, http.StatusOK, ask(a, "m").status)
	require.Equal(t, 2, e.count(), "explain sends nothing")
	require.Regexp(t, `(?m)^a-1 +serving +yes +\d/4 +127\.0\.0\.1:\d+ `, a.command("status"))
	a.atRest()

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+a.app.AdminAddr()+"/v1/explain?model=m&key=nobody", http.NoBody)
	require.NoError(t, err)
	refused := a.do(r)
	require.Equal(t, http.StatusBadRequest, refused.status)
	require.Contains(t, refused.body, `no key has the id \"nobody\"`)
}

func TestTheTwoSitesExample(t *testing.T) {
	program := filepath.Join(root(t), "examples", "two-sites", "run.sh")
	t.Run("once", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "--once")
		cmd.Dir = root(t)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Regexp(t, `^asked http://127\.0\.0\.1:\d+, was redirected to http://localhost:\d+: hello from site b\n$`, string(out))
	})
	t.Run("the line that it prints", func(t *testing.T) {
		p := startProgram(t, program)
		curl := p.waitLog(`(?s)\n  (curl -L .*?)\n\n`)[1]
		p.waitLog("Ctrl-C ends everything")
		text, err := exec.CommandContext(t.Context(), "sh", "-c", curl+" --silent --show-error --max-time 20").CombinedOutput()
		require.NoError(t, err, string(text))
		require.Contains(t, string(text), "hello from site b")
		for _, name := range []string{"explain", "status"} {
			line := p.waitLog(fmt.Sprintf(`\n  (bin/holdgate %s .*)\n`, name))[1]
			cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
			cmd.Dir = root(t)
			text, err := cmd.CombinedOutput()
			require.NoError(t, err, string(text))
			require.Contains(t, string(text), map[string]string{"explain": "redirect: 307 to b at ", "status": "site      a"}[name])
		}
		_, err = exec.CommandContext(t.Context(), "sh", "-c", p.waitLog(`\n  (kill \d+)\n`)[1]).CombinedOutput()
		require.NoError(t, err)
		line := p.waitLog(`\n  (bin/holdgate explain .*)\n`)[1]
		require.Eventually(t, func() bool {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
			cmd.Dir = root(t)
			text, err := cmd.CombinedOutput()
			return err == nil && strings.HasPrefix(string(text), "hold: ")
		}, 10*time.Second, 50*time.Millisecond)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		require.NoError(t, p.ends())
	})
}
