// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// binary returns the real Envoy. Without one the test fails: skipping would prove
// nothing.
func binary(t testing.TB) Binary {
	t.Helper()
	b, err := Find(t.Context())
	require.NoError(t, err)
	return b
}

// lanesDir returns a short directory: a unix socket's path has 107 bytes at most, and
// the directories of the testing package may be longer.
func lanesDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func rendered(t testing.TB, c Config) []byte {
	t.Helper()
	b, err := Render(c)
	require.NoError(t, err)
	text, err := YAML(b)
	require.NoError(t, err)
	return text
}

func TestEveryRenderedBootstrapIsValid(t *testing.T) {
	t.Parallel()
	b := binary(t)
	for name, c := range goldenConfigs {
		require.NoError(t, b.Validate(t.Context(), rendered(t, c)), name)
	}
	require.NoError(t, b.Validate(t.Context(), []byte(foreign(t))))
}

func TestValidateCarriesEnvoysOwnMessage(t *testing.T) {
	t.Parallel()
	text := strings.Replace(string(rendered(t, goldenConfigs["unix"])), "cluster: destinations", "cluster: nowhere", 1)
	err := binary(t).Validate(t.Context(), []byte(text))
	require.ErrorContains(t, err, "unknown cluster 'nowhere'")
}

func TestStartAnswersOnPortsOfItsOwnAndStopLeavesNothing(t *testing.T) {
	t.Parallel()
	b := binary(t)
	for edge, admin := range map[string]string{"127.0.0.1:0": "", "[::1]:0": "127.0.0.1:0"} {
		dir := lanesDir(t)
		var log bytes.Buffer
		p, err := b.Start(t.Context(), Options{
			Bootstrap:   rendered(t, Config{EdgeListen: edge, AdminListen: admin, LanesDir: dir}),
			Dir:         dir,
			Concurrency: 1,
			Log:         &log,
			LogLevel:    "info",
		})
		require.NoError(t, err)
		require.NotContains(t, p.EdgeAddr(), ":0")

		info, err := NewAdmin(p.Admin()).text(t.Context(), "/server_info")
		require.NoError(t, err)
		require.Contains(t, string(info), "/"+b.Version+"/")
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.Pid()))
		require.NoError(t, err)
		require.NotContains(t, string(maps), "envoy_shared_memory", "it would stay in /dev/shm")

		sockets := []string{ReholdSocket, RelaySocket}
		if admin == "" {
			sockets = append(sockets, AdminSocket)
		}
		for _, socket := range sockets {
			stat, err := os.Stat(filepath.Join(dir, socket))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), stat.Mode().Perm(), socket)
		}

		require.NoError(t, p.Stop(5*time.Second))
		<-p.Done()
		require.NoError(t, p.Err(), "SIGTERM ends Envoy in order")
		require.ErrorIs(t, syscall.Kill(-p.Pid(), 0), syscall.ESRCH, "a process of the group is left")
		require.Contains(t, log.String(), "starting main dispatch loop")
		_, err = net.Dial("tcp", p.EdgeAddr())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
}

func TestStartOfABrokenBootstrapShowsEnvoysMessage(t *testing.T) {
	t.Parallel()
	dir := lanesDir(t)
	text := strings.Replace(string(rendered(t, Config{EdgeListen: "127.0.0.1:0", LanesDir: dir})), "cluster: destinations", "cluster: nowhere", 1)
	begin := time.Now()
	_, err := binary(t).Start(t.Context(), Options{Bootstrap: []byte(text), Dir: dir})
	require.ErrorContains(t, err, "unknown cluster 'nowhere'")
	require.ErrorContains(t, err, "it ended: exit status 1")
	require.Less(t, time.Since(begin), 10*time.Second, "the end is noticed, not waited for")
}

func TestStartOnATakenPortShowsEnvoysMessage(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir := lanesDir(t)
	_, err = binary(t).Start(t.Context(), Options{
		Bootstrap: rendered(t, Config{EdgeListen: taken.Addr().String(), LanesDir: dir}), Dir: dir,
	})
	require.ErrorContains(t, err, "Address already in use")
}

func TestStartEndsWithItsContextAndLeavesNoProcess(t *testing.T) {
	t.Parallel()
	dir := lanesDir(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("not wanted any more"))
	_, err := binary(t).Start(ctx, Options{
		Bootstrap: rendered(t, Config{EdgeListen: "127.0.0.1:0", LanesDir: dir}), Dir: dir,
	})
	require.ErrorContains(t, err, "not wanted any more")
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, p := range procs {
		line, _ := os.ReadFile(p)
		require.NotContains(t, string(line), dir)
	}
}
