// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// openFiles returns what the descriptors of this process lead to.
func openFiles(t *testing.T) (open []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			open = append(open, to)
		}
	}
	return open
}

// filesIn returns the names of what is below a directory.
func filesIn(t *testing.T, dir string) (files []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		files = append(files, path)
		return err
	}))
	return files
}

func TestAStartThatFailsLeavesNothing(t *testing.T) { //nolint:paralleltest // it counts goroutines and files
	dir := t.TempDir()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	flags := []string{
		"--extproc-listen=unix://" + filepath.Join(dir, "extproc.sock"), "--agents-listen=127.0.0.1:0",
		"--admin-listen=127.0.0.1:0", "--keda-listen=127.0.0.1:0",
		"--ports-file=" + filepath.Join(dir, "ports.json"), "--audit-file=" + filepath.Join(dir, "audit.log"),
		"--map-file=" + filepath.Join(dir, "map.json"),
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "audit.log"), nil, 0o600))
	files, open := filesIn(t, dir), openFiles(t)
	left := []goleak.Option{
		goleak.IgnoreCurrent(),
		// The library of the audit file never ends this one.
		goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"),
	}
	for flag, value := range map[string]string{
		"extproc-listen": taken.Addr().String(),
		"agents-listen":  taken.Addr().String(),
		"admin-listen":   taken.Addr().String(),
		"keda-listen":    taken.Addr().String(),
		"ports-file":     dir,
	} {
		a := newApp(t, append(flags, "--"+flag+"="+value)...)
		require.ErrorContains(t, a.Start(t.Context()), "--"+flag)
		goleak.VerifyNone(t, left...)
		require.ElementsMatch(t, open, openFiles(t), flag)
		require.Equal(t, files, filesIn(t, dir), flag)
		require.NoError(t, a.audit.Close(), "closed before")
	}

	a := newApp(t, flags...)
	require.NoError(t, a.Start(t.Context()))
	require.Greater(t, len(openFiles(t)), len(open))
	require.NoError(t, a.Stop(context.Background()))
	goleak.VerifyNone(t, left...)
	require.ElementsMatch(t, open, openFiles(t))
	require.Equal(t, append(files, filepath.Join(dir, "ports.json")), filesIn(t, dir))
}

// The steps of Stop are those of the documentation.
func TestTheOrderOfTheShutdownIsInTheDocs(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("life.go")
	require.NoError(t, err)
	docs, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	steps := regexp.MustCompile(`(?m)^\t// (\d+\. .*)$`).FindAllSubmatch(source, -1)
	require.NotEmpty(t, steps)
	shutdown := regexp.MustCompile(`(?s)\n## Shutdown\n(.*?)\n## |\z`).FindSubmatch(append(docs, "\n## "...))
	documented := regexp.MustCompile(`(?m)^(\d+\. .*)$`).FindAllSubmatch(shutdown[1], -1)
	require.Len(t, documented, len(steps))
	for i := range steps {
		require.Equal(t, string(steps[i][1]), string(documented[i][1]))
	}
}
