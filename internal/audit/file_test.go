// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func requireMode(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestAFileIsMadeAndContinued(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "audit.log")
	l := open(t, path, Options{})
	requireMode(t, path) // before the first line
	l.Write(numbered(0))
	require.NoError(t, l.Close())

	l = open(t, path, Options{})
	l.Write(numbered(1))
	require.NoError(t, l.Close())
	require.Equal(t, requests(0, 2), ids(t, read(t, path)))
	require.ErrorIs(t, l.Reopen(), ErrClosed)
	l.Write(numbered(2))
	require.Equal(t, requests(0, 2), ids(t, read(t, path)), "closed is closed")
}

func TestReopenAfterAMove(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	moved := path + ".1"
	for n := range 200 {
		l.Write(numbered(n))
	}
	require.NoError(t, os.Rename(path, moved))
	require.NoError(t, l.Reopen())
	requireMode(t, path) // without a line
	for n := 200; n < 300; n++ {
		l.Write(numbered(n))
	}
	require.NoError(t, l.Close())
	before, after := ids(t, read(t, moved)), ids(t, read(t, path))
	require.Equal(t, requests(0, 300), append(before, after...))
	require.GreaterOrEqual(t, len(after), 100)
	require.Zero(t, l.Dropped())
}

// A process that ended while the disk was full, or was killed, leaves half a line.
func TestALogBeginsOnALineOfItsOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	const half = `{"time":"2026-11`
	line := string(numbered(0).appendLine(nil))
	require.NoError(t, os.WriteFile(path, []byte(line+half), 0o600))
	l := open(t, path, Options{})
	l.Write(numbered(1))
	require.NoError(t, l.Close())
	lines := strings.Split(read(t, path), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, half, lines[1])
	require.Equal(t, requests(0, 2), ids(t, lines[0]+"\n"+lines[2]+"\n"))

	l = open(t, path, Options{})
	require.NoError(t, os.WriteFile(path, []byte(half), 0o600)) // somebody else's file came to its place
	require.NoError(t, l.Reopen())
	l.Write(numbered(2))
	require.NoError(t, l.Close())
	rest, whole := strings.CutPrefix(read(t, path), half+"\n")
	require.True(t, whole)
	require.Equal(t, []string{"request 2"}, ids(t, rest))
}

func TestARotationLeavesALinkToTheFile(t *testing.T) {
	t.Parallel()
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link.log")
	require.NoError(t, os.Symlink(filepath.Join(dir, "audit.log"), link))
	l := open(t, link, Options{MaxMiB: 1})
	for range 4000 {
		r := numbered(0)
		r.Path = strings.Repeat("/", 200)
		l.Write(r)
	}
	require.NoError(t, l.Close())
	files, err := filepath.Glob(filepath.Join(dir, "audit*.log"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 2)
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, info.Mode().Type())
}

func TestReopenOfTheSameFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	for n := range 100 {
		l.Write(numbered(n))
		if n%10 == 0 {
			require.NoError(t, l.Reopen())
		}
	}
	require.NoError(t, l.Close())
	require.Equal(t, requests(0, 100), ids(t, read(t, path)))
}

func TestWhatIsNoFileIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder, inFile := filepath.Join(dir, "folder"), filepath.Join(dir, "file", "audit.log")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, os.WriteFile(filepath.Dir(inFile), nil, 0o600))
	_, err := Open(folder, Options{})
	require.EqualError(t, err, "opening the audit log: "+folder+" is not a regular file but a directory: name a regular file, or one that is not there yet")
	_, err = Open(inFile, Options{})
	require.ErrorContains(t, err, "opening the audit log: ")

	path := filepath.Join(dir, "audit.log")
	l := open(t, path, Options{})
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.EqualError(t, l.Reopen(), "reopening the audit log: "+path+" is not a regular file but a directory: name a regular file, or one that is not there yet")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing was moved")
}

// TestAFileIsRotatedByItsSize writes more than fits, in several lives: the names of
// rotated files differ by a millisecond, so there is one between the lives.
func TestAFileIsRotatedByItsSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const lives, lines = 5, 1500
	for life := range lives {
		<-time.After(2 * time.Millisecond)
		l := open(t, filepath.Join(dir, "audit.log"), Options{MaxMiB: 1})
		for n := range lines {
			r := numbered(life*lines + n)
			r.Path = strings.Repeat("/", 200)
			l.Write(r)
		}
		require.NoError(t, l.Close())
		require.Zero(t, l.Dropped())
	}
	files, err := filepath.Glob(filepath.Join(dir, "audit*.log"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 3)
	var all []string
	for _, f := range files {
		requireMode(t, f)
		text := read(t, f)
		require.LessOrEqual(t, len(text), 1<<20)
		all = append(all, ids(t, text)...)
	}
	require.ElementsMatch(t, requests(0, lives*lines), all, "each line once")
}

func TestTheDefaultsOfAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	for _, tt := range []struct{ o, want Options }{
		{Options{}, Options{MaxMiB: 100}},
		{Options{MaxMiB: 7, Backups: 3}, Options{MaxMiB: 7, Backups: 3}},
	} {
		f, err := openFile(path, tt.o)
		require.NoError(t, err)
		require.Equal(t, []int{tt.want.MaxMiB, tt.want.Backups}, []int{f.MaxSize, f.MaxBackups})
		require.NoError(t, f.Close())
	}
}
