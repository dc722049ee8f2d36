// SPDX-License-Identifier: Apache-2.0

package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// runtimeDir gives the user of this test an empty runtime directory, and returns the folder of the
// routers in it.
func runtimeDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	return filepath.Join(dir, "holdgate")
}

func announce(t *testing.T, admin string) *Router {
	t.Helper()
	r, err := Announce(admin)
	require.NoError(t, err)
	require.NotNil(t, r)
	return r
}

func find(t *testing.T) Found {
	t.Helper()
	f, err := Find()
	require.NoError(t, err)
	return f
}

func TestRoutersAreFoundWhileTheyRun(t *testing.T) {
	runtimeDir(t)
	require.Equal(t, Found{}, find(t))
	b := announce(t, "http://127.0.0.1:2")
	a := announce(t, "http://127.0.0.1:1")
	successor := announce(t, "http://127.0.0.1:1")
	require.Equal(t, Found{Admins: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}}, find(t))
	b.Close()
	successor.Close()
	require.Equal(t, Found{Admins: []string{"http://127.0.0.1:1"}}, find(t))
	a.Close()
	require.Equal(t, Found{}, find(t))
	(*Router)(nil).Close()
}

func TestTheFileOfARouterThatWasKilledIsStale(t *testing.T) {
	runtimeDir(t)
	r := announce(t, "http://127.0.0.1:1")
	require.NoError(t, r.file.Close()) // as the system does for a process that is killed
	require.Equal(t, Found{Stale: 1}, find(t))
	next := announce(t, "http://127.0.0.1:2")
	defer next.Close()
	require.Equal(t, Found{Admins: []string{"http://127.0.0.1:2"}}, find(t), "the next router removes it")
}

func TestOnlyFilesOfThisUserCount(t *testing.T) {
	dir := runtimeDir(t)
	kept := announce(t, "http://127.0.0.1:1")
	defer kept.Close()
	forged := func(name string) string { return filepath.Join(dir, "router-"+name+".json") }
	require.NoError(t, os.Symlink(kept.file.Name(), forged("link")))
	require.NoError(t, os.Mkdir(forged("folder"), 0o700))
	require.NoError(t, unix.Mkfifo(forged("pipe"), 0o600)) // nobody writes to it: a read would block
	writable := announce(t, "http://attacker.example")
	defer writable.Close()
	require.NoError(t, os.Chmod(writable.file.Name(), 0o622))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("{}"), 0o600))
	f := find(t)
	require.Equal(t, []string{"http://127.0.0.1:1"}, f.Admins)
	require.Len(t, f.Unsafe, 4)
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(writable.file.Name(), 12345, -1))
		require.NoError(t, os.Chmod(writable.file.Name(), 0o600))
		require.Len(t, find(t).Unsafe, 4, "a file of another user")
	}
}

func TestAFolderThatOthersMayWriteIsNotUsed(t *testing.T) {
	dir := runtimeDir(t)
	announce(t, "http://127.0.0.1:1").Close()
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := Find()
	require.ErrorContains(t, err, "another user owns it or may write it")
	_, err = Announce("http://127.0.0.1:1")
	require.Error(t, err)
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Symlink(t.TempDir(), dir))
	_, err = Find()
	require.ErrorContains(t, err, "is not a folder")
}

func TestWithoutARuntimeDirectoryNothingIsWritten(t *testing.T) {
	for _, dir := range []string{"", "relative"} {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		r, err := Announce("http://127.0.0.1:1")
		require.NoError(t, err)
		require.Nil(t, r)
		require.Equal(t, Found{}, find(t))
	}
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(t.TempDir(), "gone"))
	_, err := Announce("http://127.0.0.1:1")
	require.Error(t, err)
}

// A half-written file is neither stale nor a router.
func TestAFileThatIsBeingWrittenIsNoRouter(t *testing.T) {
	dir := runtimeDir(t)
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "router-1.json"), nil, 0o600))
	require.Equal(t, Found{}, find(t))
}
