// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/holdgate/holdgate/internal/regular"
)

func mapFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "sitemap.json")
}

// files lists a directory, to see that nothing is left behind.
func files(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestAPushSurvivesARestart(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	before := NewStore(here, nil)
	before.Persist(path)
	push(t, before, []byte(threeSites))
	require.Equal(t, []string{"sitemap.json"}, files(t, path))

	var changes []change
	after := NewStore(here, func(o, n *Map) { changes = append(changes, change{o, n}) })
	require.NoError(t, after.Restore(path))
	require.Equal(t, before.Current().core, after.Current().core)
	require.Equal(t, before.Current().Hints(), after.Current().Hints())
	require.Equal(t, before.Current().ETag(), after.Current().ETag())
	require.Zero(t, after.Current().hints.received, "they are stale")
	st := after.State()
	require.Equal(t, SourceRestored, st.Source)
	require.WithinDuration(t, time.Now(), st.ReceivedAt, time.Minute)
	require.False(t, st.ReceivedAt.After(time.Now()))
	require.Equal(t, []change{{nil, st.Map}}, changes)
}

func TestARestoredMapIsAsOldAsItsFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ written, want time.Duration }{
		"yesterday": {-24 * time.Hour, -24 * time.Hour},
		"tomorrow":  {24 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := mapFile(t)
			require.NoError(t, os.WriteFile(path, []byte(threeSites), 0o600))
			now := time.Now()
			require.NoError(t, os.Chtimes(path, time.Time{}, now.Add(c.written)))
			s := NewStore(here, nil)
			require.NoError(t, s.Restore(path))
			require.WithinDuration(t, now.Add(c.want), s.State().ReceivedAt, time.Minute)
		})
	}
}

func TestAMissingOrEmptyFileIsFine(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	path := mapFile(t)
	require.NoError(t, s.Restore(path))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, s.Restore(path))
	require.Nil(t, s.Current())
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
}

func TestAPipeIsRefusedAtOnceAndStays(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	require.NoError(t, unix.Mkfifo(path, 0o600))
	s := NewStore(here, nil)
	require.ErrorIs(t, s.Restore(path), regular.ErrNot)
	s.Persist(path)
	_, err := s.Push(numbered(1, "a"), false)
	require.ErrorIs(t, err, regular.ErrNot)
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
}

func TestALinkToTheMapStaysALink(t *testing.T) {
	t.Parallel()
	path, link := mapFile(t), mapFile(t)
	require.NoError(t, os.Symlink(path, link))
	s := NewStore(here, nil)
	s.Persist(link)
	push(t, s, numbered(1, "a"))
	require.NoError(t, NewStore(here, nil).Restore(link))
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
	require.NoError(t, os.WriteFile(path, []byte(`{"placements": [`), 0o600))
	var damaged *DamagedError
	require.ErrorAs(t, NewStore(here, nil).Restore(link), &damaged)
	require.Equal(t, filepath.Dir(path), filepath.Dir(damaged.SetAside))
	require.Equal(t, []string{"sitemap.json"}, files(t, link))
}

func TestADamagedFileIsSetAside(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"half":         threeSites[:len(threeSites)/2],
		"zeroes":       "\x00\x00\x00\x00",
		"another site": `{"placements": [{"model": "m", "kind": "chat", "site": "there"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := mapFile(t)
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			s := NewStore(here, func(_, _ *Map) { t.Error("nothing was loaded") })
			s.Persist(path)

			err := s.Restore(path)
			var damaged *DamagedError
			require.ErrorAs(t, err, &damaged)
			var problems Problems
			require.ErrorAs(t, err, &problems)
			require.Equal(t, path, damaged.Path)
			require.Regexp(t, "^"+regexp.QuoteMeta(path)+`\.damaged-\d+$`, damaged.SetAside)
			require.ErrorContains(t, err, damaged.SetAside)
			require.Nil(t, s.Current())

			kept, err := os.ReadFile(damaged.SetAside)
			require.NoError(t, err)
			require.Equal(t, content, string(kept))
			require.Equal(t, []string{filepath.Base(damaged.SetAside)}, files(t, path))
		})
	}
}

func TestAFileThatIsNoMapStays(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"a log":         "started\n",
		"a log of JSON": `{"level":"info","message":"started"}` + "\n",
		"keys":          "keys:\n- {key_hash: a, tenant: t}\n",
		"keys as JSON":  `{"keys": []}`,
		"an array":      `["generation"]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := mapFile(t)
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			require.ErrorIs(t, NewStore(here, nil).Restore(path), ErrForeign)
			require.Equal(t, []string{filepath.Base(path)}, files(t, path))
			kept, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, content, string(kept))
		})
	}
}

func TestAFileThatCannotBeReadStays(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	require.NoError(t, os.Mkdir(path, 0o700))
	err := NewStore(here, nil).Restore(path)
	require.Error(t, err)
	var damaged *DamagedError
	require.NotErrorAs(t, err, &damaged)
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
}

func TestAPushBeforeTheRestoreWins(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	require.NoError(t, os.WriteFile(path, []byte(threeSites), 0o600))
	s := NewStore(here, nil)
	push(t, s, numbered(1, "a"))
	require.NoError(t, s.Restore(path))
	require.Equal(t, []string{"a"}, s.Current().Models())
	require.Equal(t, SourcePushed, s.State().Source)
}

func TestOnlyAcceptedPushesReachTheDisk(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	s := NewStore(here, nil)
	push(t, s, numbered(1, "a"))
	require.Empty(t, files(t, path), "no file was named yet")
	s.Persist(path)
	push(t, s, numbered(2, "b"))
	_, err := s.Push(numbered(1, "c"), false)
	require.Error(t, err)
	_, err = s.Push([]byte(`{"generation": 3`), false)
	require.Error(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(s.Current().JSON()), string(text))
	require.Equal(t, []string{"b"}, s.Current().Models())
}

func TestAPushThatCannotBeWrittenIsInForceAndRetried(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "later", "sitemap.json")
	s := NewStore(here, nil)
	s.Persist(path)

	sum, err := s.Push(numbered(1, "a"), false)
	var persist *PersistError
	require.ErrorAs(t, err, &persist)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, path, persist.Path)
	require.Equal(t, Summary{Generation: 1, Placements: 1, Holdable: 1}, sum)
	require.Equal(t, []string{"a"}, s.Current().Models())

	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	sum, err = s.Push(numbered(1, "a"), false)
	require.NoError(t, err)
	require.True(t, sum.Unchanged)
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
}

func TestAFailedRenameLeavesNoTemporaryFile(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	require.NoError(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	s := NewStore(here, nil)
	s.Persist(path)
	_, err := s.Push(numbered(1, "a"), false)
	var persist *PersistError
	require.ErrorAs(t, err, &persist)
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
}

// Readers of the file see one whole map at any moment, and the last map in
// force is the one on disk.
func TestTheFileIsNeverHalfWritten(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	s := NewStore(here, nil)
	s.Persist(path)
	push(t, s, numbered(-1, "first"))
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := range 20 {
				if _, err := s.Push(numbered(-1, fmt.Sprintf("m-%d-%d", w, i)), false); err != nil {
					t.Error(err)
				}
				text, err := os.ReadFile(path)
				if err != nil {
					t.Error(err)
				}
				if _, err := Parse(text, here); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(s.Current().JSON()), string(text))
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
}
