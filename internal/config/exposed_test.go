// SPDX-License-Identifier: Apache-2.0

package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdgate/holdgate/internal/regular"
)

func TestSecretsThatOthersMayReadAreWarnedOf(t *testing.T) {
	t.Parallel()
	uid := regular.UserName(os.Geteuid())
	const long = "0123456789abcdef"
	for name, c := range map[string]struct {
		mode fs.FileMode
		text string
		want []string // FILE stands for the path
	}{
		"private":            {0o600, long, nil},
		"of a group":         {0o640, long, nil},
		"read by all":        {0o644, long, []string{"--admin-token-file: others may read or write FILE (owner " + uid + ", mode 0644): run chmod o-rw FILE"}},
		"written by all":     {0o602, long, []string{"--admin-token-file: others may read or write FILE (owner " + uid + ", mode 0602): run chmod"}},
		"short":              {0o600, long[:15], []string{"--admin-token-file: FILE has a token of less than 16 bytes, which can be guessed"}},
		"a short one of two": {0o600, long + "\nshort\n", []string{"--admin-token-file: FILE has a token of less than 16 bytes"}},
		"both":               {0o666, "short", []string{"mode 0666", "less than 16 bytes"}},
	} {
		file := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
		require.NoError(t, os.Chmod(file, c.mode))
		list := warnings(t, "--admin-token-file="+file)
		require.Len(t, list, len(c.want), name)
		for i, want := range c.want {
			require.Contains(t, list[i], strings.ReplaceAll(want, "FILE", file), name)
		}
	}
}

// warnings are those of a configuration whose sockets are in a private directory.
func warnings(t *testing.T, args ...string) []string {
	t.Helper()
	dir := t.TempDir()
	c, _, err := parse(t, append([]string{"--extproc-listen=unix://" + dir + "/e", "--relay=unix://" + dir + "/r"}, args...)...)
	require.NoError(t, err)
	return c.Warnings()
}

func TestASecretInAPipeIsNotReadTwice(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	require.Empty(t, warnings(t, "--agents-token-file="+pipe))
}

func TestADirectoryThatOthersMayWriteIsWarnedOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.Empty(t, warnings(t, "--admin-listen=unix://"+dir+"/admin.sock"))
	require.Empty(t, warnings(t, "--admin-listen=unix://"+dir+"/none/admin.sock"), "the router will make it")
	require.NoError(t, os.Chmod(dir, 0o777))
	list := warnings(t, "--admin-listen=unix://"+dir+"/admin.sock", "--agents-listen=unix://"+dir+"/agents.sock")
	require.Len(t, list, 1, "said once")
	require.Contains(t, list[0], "others may put sockets into "+dir+" (owner "+regular.UserName(os.Geteuid())+", mode 0777) before the router does")
}

// A named pipe as a file of tokens must not hang the start.
func TestAPipeIsNoFileOfTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := ReadTokens(path)
	require.ErrorContains(t, err, "is not a regular file")
}
