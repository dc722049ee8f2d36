// SPDX-License-Identifier: Apache-2.0

package regular

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// others makes what is no regular file, each in a folder of its own.
func others(t *testing.T) map[string]string {
	t.Helper()
	in := func() string { return filepath.Join(t.TempDir(), "file") }
	all := map[string]string{"a directory": in(), "a named pipe": in(), "a socket": in(), "a device": in()}
	require.NoError(t, os.Mkdir(all["a directory"], 0o700))
	require.NoError(t, unix.Mkfifo(all["a named pipe"], 0o600))
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", all["a socket"])
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	// The null device, in a folder of the test.
	if err := unix.Mknod(all["a device"], unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		delete(all, "a device") // only root makes devices
	}
	return all
}

func names(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWhatIsNoRegularFileStays(t *testing.T) {
	t.Parallel()
	for kind, path := range others(t) {
		link := filepath.Join(t.TempDir(), "link")
		require.NoError(t, os.Symlink(path, link))
		before, err := os.Lstat(path)
		require.NoError(t, err)
		for _, named := range []string{path, link} {
			_, _, read := Read(named, 1)
			_, appended := Append(named)
			_, created := Create(named)
			for what, err := range map[string]error{
				"check": Check(named), "read": read, "append": appended, "create": created, "write": Write(named, []byte("x"), 0o600),
			} {
				require.ErrorIs(t, err, ErrNot, "%s %s", what, kind)
				require.ErrorContains(t, err, path+" is not a regular file but "+kind+": name a regular file", what)
			}
		}
		after, err := os.Lstat(path)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after))
		require.Equal(t, []string{"file"}, names(t, path), kind)
		require.Equal(t, []string{"link"}, names(t, link), kind)
	}
}

func TestAnOpenFileIsReadByItsNumber(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, os.Remove(path))
	text, _, err := Read(fmt.Sprintf("/dev/fd/%d", f.Fd()), 10)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))

	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _, _ = out.Close(), in.Close() }()
	number := fmt.Sprintf("/dev/fd/%d", out.Fd())
	_, _, err = Read(number, 10)
	require.EqualError(t, err, number+" is not a regular file but a named pipe: name a regular file")
}

func TestALinkStaysAndItsFileIsWritten(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "real", "sub"), 0o700))
		require.NoError(t, os.Symlink("real/sub", filepath.Join(dir, "sub")))
		// Through a linked directory, .. is the parent of the real one.
		require.NoError(t, os.Symlink("../file", filepath.Join(dir, "real", "sub", "link")))
		if there {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "file"), []byte("old"), 0o600))
		}
		link := filepath.Join(dir, "sub", "link")
		require.NoError(t, Write(link, []byte("new"), 0o640))
		info, err := os.Lstat(link)
		require.NoError(t, err)
		require.Equal(t, fs.ModeSymlink, info.Mode().Type())
		info, err = os.Lstat(filepath.Join(dir, "real", "file"))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o640), info.Mode())
		data, _, err := Read(link, 100)
		require.NoError(t, err)
		require.Equal(t, "new", string(data))
		f, err := Append(link)
		require.NoError(t, err)
		_, err = f.WriteString(" more")
		require.NoError(t, err)
		require.NoError(t, f.Close())
		data, _, err = Read(link, 6)
		require.NoError(t, err)
		require.Equal(t, "new mo", string(data), "no more than asked for")
	}
}

func TestAFileUnderTheUsualTemporaryNameIsNotTouched(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ports.json")
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("mine"), 0o600))
	require.NoError(t, os.Symlink(victim, path+".tmp"))
	require.NoError(t, Write(path, []byte("x"), 0o600))
	kept, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "mine", string(kept))
	require.Equal(t, []string{"ports.json", "ports.json.tmp"}, names(t, path))
}

func TestLinksThatLeadNowhereEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	require.NoError(t, os.Symlink("a", path))
	require.ErrorIs(t, Check(path), unix.ELOOP)
}
