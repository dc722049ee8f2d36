// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// copyUnits copies the units of the examples to a new directory and returns it. Their programs
// are replaced by one that is on every machine.
func copyUnits(t *testing.T) (dir string, names []string) {
	t.Helper()
	from, dir := filepath.Join(root(t), "examples", "systemd"), t.TempDir()
	files, err := filepath.Glob(filepath.Join(from, "*.service"))
	require.NoError(t, err)
	require.Len(t, files, 4)
	program := regexp.MustCompile(`/usr/local/bin/(holdgate|envoy)\b`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Regexp(t, program, string(text))
		names = append(names, filepath.Base(file))
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), program.ReplaceAll(text, []byte("/bin/true")), 0o600))
	}
	return dir, names
}

// analyze runs systemd-analyze in a directory and returns what it prints.
func analyze(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), tool(t, "systemd-analyze"), args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	return string(out), err
}

// systemd finds no fault in our units, and would: it only prints a wrong name, and goes on.
func TestOurUnitsAreValid(t *testing.T) {
	dir, names := copyUnits(t)
	verify := func(names ...string) (string, error) {
		return analyze(t, dir, append([]string{"verify", "--recursive-errors=no", "--man=no"}, names...)...)
	}
	out, err := verify(names...)
	require.NoError(t, err, out)
	require.Empty(t, out)

	text, err := os.ReadFile(filepath.Join(root(t), "examples", "systemd", "agent-exec.conf"))
	require.NoError(t, err)
	drop := filepath.Join(dir, "holdgate-agent@.service.d")
	require.NoError(t, os.Mkdir(drop, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(drop, "exec.conf"), text, 0o600))
	out, err = verify("holdgate-agent@.service")
	require.NoError(t, err, out)
	require.Empty(t, out)

	for _, wrong := range []string{"NoNewPrivilege=yes", "SystemCallFilter=@system-servic", "RestrictAddressFamilies=AF_NETLIN"} {
		require.NoError(t, os.WriteFile(filepath.Join(drop, "exec.conf"), []byte("[Service]\n"+wrong+"\n"), 0o600))
		out, _ = verify("holdgate-agent@.service")
		require.Contains(t, out, "exec.conf:2", wrong)
	}
}

// The sandboxes keep the scores that docs/install.md names; 10 is no sandbox.
func TestTheSandboxesOfOurUnits(t *testing.T) {
	dir, _ := copyUnits(t)
	for unit, most := range map[string]float64{"holdgate-serve.service": 2, "holdgate-envoy.service": 2, "holdgate-agent@.service": 2, "holdgate-up.service": 8} {
		out, err := analyze(t, dir, "security", "--offline=yes", "--no-pager", filepath.Join(dir, unit))
		require.NoError(t, err, out)
		found := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
		require.NotNil(t, found, out)
		var score float64
		_, err = fmt.Sscan(found[1], &score)
		require.NoError(t, err)
		require.LessOrEqual(t, score, most, out)
		t.Logf("%s: %v", unit, score)
	}
}

// A router says that it is ready when requests to it succeed, and never before; then that it stops.
func TestSystemdIsToldWhenTheRouterIsReady(t *testing.T) {
	dir := t.TempDir()
	systemd, err := net.ListenPacket("unixgram", filepath.Join(dir, "notify"))
	require.NoError(t, err)
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	flags := []string{"serve", "--extproc-listen", "unix://" + dir + "/e.sock", "--agents-listen", "unix://" + dir + "/a.sock", "--admin-listen", "unix://" + dir + "/admin.sock"}
	require.Error(t, start(t, append(flags, "--ports-file", dir+"/missing/ports.json")...).ends())

	p := start(t, flags...)
	told := func() string {
		buf := make([]byte, 1024)
		require.NoError(t, systemd.SetReadDeadline(time.Now().Add(20*time.Second)))
		n, _, err := systemd.ReadFrom(buf)
		require.NoError(t, err)
		return string(buf[:n])
	}
	require.Equal(t, fmt.Sprintf("MAINPID=%d\nREADY=1", p.cmd.Process.Pid), told())
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", dir+"/admin.sock")
	}}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://localhost/readyz")
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "STOPPING=1", told())
	require.NoError(t, p.ends())
	require.Contains(t, p.out.String(), "holdgate is ready")
}
