// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// root returns the repository: commands run there, as users run them.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	require.NoError(t, err)
	return dir
}

// process is bin/holdgate, run as a user runs it.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *buffer
	done chan error
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	binary := filepath.Join(root(t), "bin", "holdgate")
	require.FileExists(t, binary, "run `make build` first")
	return startProgram(t, binary, args...)
}

func startProgram(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), out: &buffer{}, done: make(chan error, 1)}
	p.cmd.Dir = root(t)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	require.NoError(t, p.cmd.Start())
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if t.Failed() {
			t.Log(p.out.String())
		}
	})
	return p
}

// waitLog waits for a line in the output and returns its groups.
func (p *process) waitLog(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	require.Eventually(p.t, func() bool {
		found = re.FindStringSubmatch(p.out.String())
		return found != nil
	}, 20*time.Second, 10*time.Millisecond, "%s in\n%s", pattern, p.out)
	return found
}

// ends waits for the process's end and returns its error.
func (p *process) ends() error {
	p.t.Helper()
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-time.After(30 * time.Second):
		require.Fail(p.t, "the process did not end", "%s", p.out)
		return nil
	}
}

// children returns the processes below pid whose command line contains the text.
func children(t *testing.T, pid int, text string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	parents, lines := map[int]int{}, map[int]string{}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if fields[0] == "Z" {
			continue
		}
		parents[id], _ = strconv.Atoi(fields[1])
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		lines[id] = strings.ReplaceAll(string(line), "\x00", " ")
	}
	var found []int
	for id := range parents {
		for up := parents[id]; up > 1; up = parents[up] {
			if up == pid && strings.Contains(lines[id], text) {
				found = append(found, id)
				break
			}
		}
	}
	return found
}

// gone waits until none of the processes is left.
func gone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, 15*time.Second, 20*time.Millisecond, "process %d is still there", pid)
	}
}

// onlyChild returns the only process below pid whose command line contains the text.
func onlyChild(t *testing.T, pid int, text string) int {
	t.Helper()
	var found []int
	require.Eventually(t, func() bool {
		found = children(t, pid, text)
		return len(found) == 1
	}, 10*time.Second, 10*time.Millisecond, text)
	return found[0]
}

// upFile writes a models file for tests.
func upFile(t *testing.T, idle string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "models.yaml")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `
listen: 127.0.0.1:0
models:
- name: smollm2
  engine: llamacpp
  exec: "{python} tools/llama_server.py --port {port}"
  slots: 2
  idle_timeout: %s
`, idle), 0o600))
	return path
}

// startUp starts `holdgate up` and returns the edge's URL.
func startUp(t *testing.T, idle string) (*process, string) {
	t.Helper()
	p := start(t, "up", "-f", upFile(t, idle))
	return p, p.waitLog(`Holdgate listens on (http://\S+);`)[1]
}

func chat(t *testing.T, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	body := `{"model":"smollm2","max_tokens":8,"temperature":0,"messages":[{"role":"user","content":"Say hello."}]}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chatPath, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func TestUpAnswersTheCurlItPrints(t *testing.T) {
	p, url := startUp(t, "1s")
	line := p.waitLog(`(?m)^  (curl .*)$`)[1]
	curl := exec.CommandContext(t.Context(), "sh", "-c", line+" --silent --show-error --fail-with-body --max-time 60")
	out, err := curl.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), `"content"`)
	for _, event := range []string{"request held", "waking", `ready.*after=`, "released", "asleep again"} {
		p.waitLog(event)
	}
	status, body := chat(t, url) // asleep, and awake again
	require.Equal(t, http.StatusOK, status, body)

	all := children(t, p.cmd.Process.Pid, "")
	require.GreaterOrEqual(t, len(all), 3, "serve, Envoy and the engine")
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, p.ends())
	gone(t, all)
}

func TestAnEngineKilledWhileIdleIsWokenAgain(t *testing.T) {
	p, url := startUp(t, "10m")
	status, body := chat(t, url)
	require.Equal(t, http.StatusOK, status, body)
	engine := onlyChild(t, p.cmd.Process.Pid, "llama_server.py")
	require.NoError(t, syscall.Kill(engine, syscall.SIGKILL))
	status, body = chat(t, url)
	require.Equal(t, http.StatusOK, status, body)
	require.NotEqual(t, engine, onlyChild(t, p.cmd.Process.Pid, "llama_server.py"))
}

func TestUpEndsWhenAPartIsKilled(t *testing.T) {
	for part, says := range map[string]string{"--ports-file": "holdgate serve ended by itself", "envoy.yaml": "envoy ended by itself"} {
		t.Run(part, func(t *testing.T) {
			p, url := startUp(t, "10m")
			status, body := chat(t, url)
			require.Equal(t, http.StatusOK, status, body)
			all := children(t, p.cmd.Process.Pid, "")
			require.NoError(t, syscall.Kill(onlyChild(t, p.cmd.Process.Pid, part), syscall.SIGKILL))
			require.Error(t, p.ends())
			p.waitLog(says)
			gone(t, all)
		})
	}
}

// After Ctrl-C running answers finish, including those that Envoy carries.
func TestUpLetsRunningAnswersEnd(t *testing.T) {
	p, url := startUp(t, "10m")
	status, body := chat(t, url)
	require.Equal(t, http.StatusOK, status, body)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+chatPath,
		strings.NewReader(`{"model":"smollm2","stream":true,"max_tokens":200,"temperature":0,"messages":[{"role":"user","content":"Count from one to one hundred."}]}`))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	first := make([]byte, 1)
	_, err = io.ReadFull(resp.Body, first)
	require.NoError(t, err)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(rest), "data: [DONE]")
	require.NoError(t, p.ends())
}

func TestNothingOutlivesAnUpThatIsKilled(t *testing.T) {
	p, url := startUp(t, "10m")
	status, body := chat(t, url)
	require.Equal(t, http.StatusOK, status, body)
	all := children(t, p.cmd.Process.Pid, "")
	require.NoError(t, p.cmd.Process.Kill())
	gone(t, all)
}

func TestUpSaysWhatIsWrongWithItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.yaml")
	for text, want := range map[string]string{
		"":                                 "must not be empty",
		"models: []":                       "models: at least one is needed",
		"models: [{name: a}]":              "models[0]: needs exec (line 1)",
		"models: [{name: a, exce: x}]":     "models[0].exce: is not known (line 1)",
		"models: [{name: a, exec: \"'\"}]": "models[0].exec",
		"models: [{name: a, exec: x}, {name: a, exec: x, slots: -1, hold_budget: 2h, kinds: [text]}]": `models[1].name: "a" is given twice`,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		p := start(t, "up", "-f", path)
		require.Error(t, p.ends())
		require.Equal(t, 2, p.cmd.ProcessState.ExitCode())
		require.Contains(t, p.out.String(), want)
	}
}

// An answer that Envoy carries does not need Holdgate any more.
func TestACrashOfServeLeavesRunningAnswersAlone(t *testing.T) {
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	mapFile := filepath.Join(dir, "map.json")
	require.NoError(t, os.WriteFile(mapFile, []byte(testMap), 0o600))
	serve := func() *process {
		p := start(t, "serve", "--site-id", "here", "--extproc-listen", "unix://"+dir+"/extproc.sock", "--relay", "unix://"+dir+"/relay.sock",
			"--agents-listen", "unix://"+dir+"/agents.sock", "--admin-listen", "127.0.0.1:0", "--map-file", mapFile, "--ports-file", dir+"/ports.json")
		p.waitLog("holdgate is ready")
		return p
	}
	first := serve()
	log := &buffer{}
	url := "http://" + startEnvoy(t, dir, log).EdgeAddr()

	begun, finish := make(chan struct{}, 2), make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			return
		}
		_, _ = io.WriteString(w, "first ")
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		<-finish
		_, _ = io.WriteString(w, "second")
	})
	start(t, "agent", "--router", "unix://"+dir+"/agents.sock", "--engine", "custom", "--backend-url", "http://"+e.addr(),
		"--model", "m", "--capability", "llm", "--capacity", "4")
	first.waitLog("agent registered")
	s := &site{t: t, url: url, http: newHTTPClient(t)}
	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	<-begun
	require.NoError(t, first.cmd.Process.Kill())
	require.Error(t, first.ends())
	r := s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.JSONEq(t, `{"error":{"code":"router_unavailable","message":"the router is not available; retry in 5 seconds","source":"router","retry_after":5}}`, r.body)
	require.Equal(t, "5", r.header.Get("Retry-After"))
	require.Less(t, r.elapsed, time.Second)

	// A restart with a map on disk never turns a cold model into a 404.
	second := serve()
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	second.waitLog("agent registered")
	close(finish)
	for name, a := range map[string]<-chan result{"running": answer, "held": held} {
		r = <-a
		require.NoError(t, r.err, name)
		require.Equal(t, "first second", r.body, "%s %v", name, r.elapsed)
	}
}
