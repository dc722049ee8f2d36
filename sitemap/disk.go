// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/holdgate/holdgate/internal/regular"
)

// PersistError is the error of a map that is in force but could not be written to disk,
// so that a restart would restore an older one.
type PersistError struct {
	Path string
	Err  error
}

// Error names the file and the cause.
func (e *PersistError) Error() string {
	return fmt.Sprintf("the map is in force but not on disk: writing %s: %v", e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *PersistError) Unwrap() error { return e.Err }

// DamagedError is the error of a map file that is invalid and was not loaded.
type DamagedError struct {
	Path string
	// SetAside is the file's new path, empty if it could not be renamed.
	SetAside string
	Err      error
}

// Error names the file, its new path and the cause.
func (e *DamagedError) Error() string {
	if e.SetAside == "" {
		return fmt.Sprintf("the map in %s was not loaded: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("the map in %s was not loaded and is now %s: %v", e.Path, e.SetAside, e.Err)
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// ErrForeign is the error of a file that was not written by a Store.
var ErrForeign = errors.New("the file is not a sibling map")

// mapStart matches the beginning of a map, even if the rest is cut off or damaged.
var mapStart = regexp.MustCompile(`^[\s\x00]*(\{\s*("(generation|sites|placements|hints)"|\}|$)|$)`)

// disk is the file with a copy of the map in force.
type disk struct {
	mu   sync.Mutex // held while writing, so that the newest map is written last
	path string
	// savedTag is the tag of the map in the file without its hints, empty if unknown. New
	// hints alone are not written, because those of a restored map are stale.
	savedTag string
}

// Persist sets the file to which each accepted push is written.
func (s *Store) Persist(path string) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.disk.path != path {
		s.disk.path, s.disk.savedTag = path, ""
	}
}

// Restore puts the map of a file in force, unless one was pushed already. A missing or an
// empty file is no error. A file that is not a valid map for this site is renamed and
// reported as a *DamagedError. A file that cannot be read or is not a regular one is left
// unchanged, and so is one that does not begin like a map, with ErrForeign.
func (s *Store) Restore(path string) error {
	// The canonical form can be longer than what was pushed, because a duration like
	// .5s becomes 500ms: the limit leaves room for that.
	data, info, err := regular.Read(path, 2*MaxBytes)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the map file: %w", err)
	}
	m, err := Parse(data, s.self)
	if err != nil && !mapStart.Match(data) {
		return ErrForeign
	}
	if err != nil {
		return setAside(path, err)
	}
	s.putRestored(m, info.ModTime())
	s.reportChanges()
	return nil
}

func (s *Store) putRestored(m *Map, written time.Time) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.Current() != nil {
		return
	}
	// The age of the map must not be negative if the clock was set back.
	if now := time.Now(); written.After(now) {
		written = now
	}
	s.swap(State{Map: m, Source: SourceRestored, ReceivedAt: written, restored: true})
}

// setAside renames a damaged file, and the file itself if the path is a link to it.
func setAside(path string, cause error) error {
	at, err := regular.Resolve(path)
	if err != nil {
		return &DamagedError{Path: path, Err: errors.Join(cause, err)}
	}
	aside := fmt.Sprintf("%s.damaged-%d", at, time.Now().Unix())
	if err := os.Rename(at, aside); err != nil {
		return &DamagedError{Path: path, Err: errors.Join(cause, err)}
	}
	return &DamagedError{Path: path, SetAside: aside, Err: cause}
}

// save writes the map in force, unless the file has it already. It calls current with the
// lock held, so that an older push cannot overwrite a newer one.
func (d *disk) save(current func() *Map) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := current()
	if d.path == "" || d.savedTag == m.tag {
		return nil
	}
	d.savedTag = ""
	if err := regular.Write(d.path, m.JSON(), 0o600); err != nil {
		return &PersistError{Path: d.path, Err: err}
	}
	d.savedTag = m.tag
	return nil
}
