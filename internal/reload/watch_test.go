// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// soon is when a change must have been seen.
const soon = Interval + 2*settle

// watched runs a test in a bubble, with a file that says "one" and was written a
// minute ago, and that is being watched.
func watched(t *testing.T, path string, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		old(t, path)
		r := newRig(t, path)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			r.Watch(ctx)
			close(ended)
		}()
		test(r)
		cancel()
		<-ended
	})
}

// old gives a file a time of the bubble, a minute ago.
func old(t *testing.T, path string) {
	t.Helper()
	then := time.Now().Add(-time.Minute)
	require.NoError(t, os.Chtimes(path, then, then))
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAChangeInPlaceIsSeen(t *testing.T) {
	t.Parallel()
	watched(t, newPath(t, "one"), func(r *rig) {
		wait(10 * Interval)
		require.Equal(t, []string{"one"}, r.parsed())
		write(t, r.path, "two")
		wait(soon)
		require.Equal(t, "two", r.Current().s)
	})
}

// The time of the new file is the time of the old one, and so is its size.
func TestARenamedFileIsSeen(t *testing.T) {
	t.Parallel()
	watched(t, newPath(t, "one"), func(r *rig) {
		info, err := os.Stat(r.path)
		require.NoError(t, err)
		next := r.path + ".next"
		write(t, next, "two")
		require.NoError(t, os.Chtimes(next, info.ModTime(), info.ModTime()))
		require.NoError(t, os.Rename(next, r.path))
		wait(soon)
		require.Equal(t, "two", r.Current().s)
	})
}

// Kubernetes keeps the files of a volume in a folder of each version, and swaps
// the link that points to the folder.
func TestASwappedLinkIsSeen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for version, s := range map[string]string{"..1": "one", "..2": "two"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		write(t, filepath.Join(dir, version, "file"), s)
	}
	require.NoError(t, os.Symlink("..1", filepath.Join(dir, "..data")))
	path := filepath.Join(dir, "file")
	require.NoError(t, os.Symlink("..data/file", path))
	watched(t, path, func(r *rig) {
		old(t, filepath.Join(dir, "..2", "file"))
		const name = "x_config_last_reload_success_timestamp_seconds"
		loaded := gauge(t, r.reg, name)
		wait(3 * Interval)
		require.InDelta(t, loaded, gauge(t, r.reg, name), 0, "a link is no change by itself")
		require.NoError(t, os.Symlink("..2", filepath.Join(dir, "..tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
		wait(soon)
		require.Equal(t, "two", r.Current().s)
	})
}

// A write in the same step of the file's clock, after the file was read, leaves
// its time and its size as they were.
func TestAChangeInTheSameInstantIsSeen(t *testing.T) {
	t.Parallel()
	watched(t, newPath(t, "one"), func(r *rig) {
		now := time.Now()
		write(t, r.path, "two")
		require.NoError(t, os.Chtimes(r.path, now, now))
		require.NoError(t, r.Reload())
		write(t, r.path, "six")
		require.NoError(t, os.Chtimes(r.path, now, now))
		wait(soon)
		require.Equal(t, "six", r.Current().s)
		wait(10 * Interval)
		require.Equal(t, []string{"one", "two", "six"}, r.parsed())
		old(t, r.path)
		wait(soon)
		require.Equal(t, []string{"one", "two", "six"}, r.parsed(), "the same bytes are not parsed again")
	})
}

func TestAFileThatIsBeingWrittenIsNotRead(t *testing.T) {
	t.Parallel()
	watched(t, newPath(t, "one"), func(r *rig) {
		time.Sleep(Interval - settle/4)
		for _, s := range []string{"", "t", "tw", "twe", "twen", "twent", "twenty"} {
			write(t, r.path, s)
			time.Sleep(settle / 2)
		}
		wait(soon)
		require.Equal(t, []string{"one", "twenty"}, r.parsed())
	})
}

func TestABadFileIsReportedOnce(t *testing.T) {
	t.Parallel()
	watched(t, newPath(t, "one"), func(r *rig) {
		write(t, r.path, "it is bad")
		old(t, r.path)
		wait(soon)
		require.Len(t, r.logged(), 1)
		require.False(t, r.good(t))
		wait(10 * Interval)
		require.Empty(t, r.logged())
		require.Equal(t, []string{"one", "it is bad"}, r.parsed(), "it is not read again until it changes")

		require.NoError(t, os.Remove(r.path))
		wait(10 * Interval)
		require.Len(t, r.logged(), 1, "another reason is another line")

		write(t, r.path, "one")
		old(t, r.path)
		wait(soon)
		require.Len(t, r.logged(), 1, "so is the end of the problem")
		require.True(t, r.good(t))
		require.Equal(t, "one", r.Current().s)
	})
}

// What cannot be read is tried again, though its time and size stay the same.
func TestAFileThatComesBackIsRead(t *testing.T) {
	t.Parallel()
	watched(t, newPath(t, "one"), func(r *rig) {
		away := r.path + ".away"
		require.NoError(t, os.Rename(r.path, away))
		wait(soon)
		require.False(t, r.good(t))
		require.Equal(t, "one", r.Current().s)
		require.NoError(t, os.Rename(away, r.path))
		wait(soon)
		require.True(t, r.good(t))
	})
}

// parts is a value made of the files that its own file names, one a line.
type parts struct{ files, texts []string }

func (p *parts) Files() []string { return p.files }

func parseParts(data []byte, inForce *parts) (*parts, error) {
	p := &parts{}
	for path := range strings.FieldsSeq(string(data)) {
		text, err := Read(path, 100)
		if err != nil {
			return nil, err
		}
		p.files, p.texts = append(p.files, path), append(p.texts, string(text))
	}
	if inForce != nil && slices.Equal(p.files, inForce.files) && slices.Equal(p.texts, inForce.texts) {
		return inForce, nil
	}
	return p, nil
}

func TestFurtherFilesAreWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newPath(t, "a1"), newPath(t, "b1")
		path := newPath(t, a)
		for _, one := range []string{path, a, b} {
			old(t, one)
		}
		f, err := Load(path, parseParts, Options{Setting: "some-file"})
		require.NoError(t, err)
		changes := 0
		f.OnChange(func(_, _ *parts) { changes++ })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Watch(ctx)
		wait(10 * Interval)
		require.Zero(t, changes)

		write(t, a, "a2")
		wait(soon)
		require.Equal(t, []string{"a2"}, f.Current().texts)
		write(t, path, a+" "+b)
		wait(soon)
		require.Equal(t, []string{"a2", "b1"}, f.Current().texts)
		write(t, b, "b2")
		wait(soon + Interval)
		require.Equal(t, []string{"a2", "b2"}, f.Current().texts)

		require.NoError(t, os.Remove(b))
		wait(3 * Interval)
		require.Equal(t, []string{"a2", "b2"}, f.Current().texts, "a bad file keeps the old")
		write(t, b, "b3")
		wait(soon)
		require.Equal(t, []string{"a2", "b3"}, f.Current().texts)
		require.NoError(t, f.Reload())
		wait(10 * Interval)
		require.Equal(t, 4, changes, "only changes are changes")
	})
}

// A file may name another before that one is there.
func TestAFurtherFileMayComeLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path, late := newPath(t, ""), filepath.Join(t.TempDir(), "late")
		old(t, path)
		f, err := Load(path, parseParts, Options{Setting: "some-file"})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Watch(ctx)
		write(t, path, late)
		old(t, path)
		wait(10 * Interval)
		require.Empty(t, f.Current().texts)
		write(t, late, "here")
		wait(soon)
		require.Equal(t, []string{"here"}, f.Current().texts)
	})
}
