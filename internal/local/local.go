// SPDX-License-Identifier: Apache-2.0

// Package local lets the commands of a user find the routers that this user runs on this
// machine. Each router has a file below the user's runtime directory with the address of its
// admin API, and keeps a lock on it while it runs: a file without a lock is left by a router that
// was killed.
package local

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdgate/holdgate/internal/regular"
)

// maxFile is the longest file of a router, in bytes, maxRouters the number of files that are
// looked at.
const (
	maxFile    = 4 << 10
	maxRouters = 1000
)

// content is what the file of a router has.
type content struct {
	Admin string `json:"admin"` // a URL
}

// folder returns the folder of the files, empty if the user has no runtime directory.
func folder() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "holdgate")
	}
	return ""
}

// Router is the file of a running router.
type Router struct{ file *os.File }

// Announce writes the file of a router whose admin API has a URL. It returns nil if the user has
// no runtime directory.
func Announce(admin string) (*Router, error) {
	dir := folder()
	if dir == "" {
		return nil, nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making the folder of this user's routers: %w", err)
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "router-*.json") // mode 0600, and never a file that is there
	if err != nil {
		return nil, fmt.Errorf("making the file of this router: %w", err)
	}
	r := &Router{f}
	if err := r.write(content{admin}); err != nil {
		r.Close()
		return nil, fmt.Errorf("writing the file of this router: %w", err)
	}
	removeStale(dir)
	return r, nil
}

// removeStale removes the files of routers that were killed.
func removeStale(dir string) {
	for _, path := range files(dir) {
		if _, stale, err := read(path); stale && err == nil {
			_ = os.Remove(path)
		}
	}
}

// files returns the paths of the routers' files in a folder.
func files(dir string) (paths []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries[:min(len(entries), maxRouters)] {
		if strings.HasPrefix(e.Name(), "router-") && strings.HasSuffix(e.Name(), ".json") {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}

// write locks the file before it writes, so that a file with content and without a lock is stale.
func (r *Router) write(c content) error {
	if err := unix.Flock(int(r.file.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = r.file.Write(text)
	return err
}

// Close removes the file. r may be nil.
func (r *Router) Close() {
	if r == nil {
		return
	}
	_ = os.Remove(r.file.Name())
	_ = r.file.Close()
}

// checkFolder refuses a folder that another user could have filled.
func checkFolder(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("looking at the folder of this user's routers: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", dir)
	case !private(info):
		return fmt.Errorf("%s is not used: another user owns it or may write it", dir)
	}
	return nil
}

// private reports whether only this user may write a file.
func private(info fs.FileInfo) bool {
	return regular.OwnerOf(info) == os.Geteuid() && info.Mode().Perm()&0o022 == 0
}

// Found is what Find has found.
type Found struct {
	Admins []string // the URLs of the routers that run, sorted, each once
	Stale  int      // files of routers that were killed
	Unsafe []string // files that were not read, with the reason
}

// Find looks for the routers that this user runs.
func Find() (f Found, err error) {
	dir := folder()
	if dir == "" {
		return f, nil
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err := checkFolder(dir); err != nil {
		return f, err
	}
	for _, path := range files(dir) {
		f.look(path)
	}
	slices.Sort(f.Admins)
	f.Admins = slices.Compact(f.Admins) // a process and the one that takes over from it have one address
	return f, nil
}

// look reads the file of a router.
func (f *Found) look(path string) {
	admin, stale, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has just ended
	case err != nil:
		f.Unsafe = append(f.Unsafe, fmt.Sprintf("%s: %v", path, err))
	case stale:
		f.Stale++
	case admin != "":
		f.Admins = append(f.Admins, admin)
	}
}

// read returns the URL in a file, empty if it is not written yet. stale: no process has a lock on
// it.
func read(path string) (admin string, stale bool, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false, fmt.Errorf("opening it: %w", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", false, fmt.Errorf("looking at it: %w", err)
	case !info.Mode().IsRegular():
		return "", false, regular.ErrNot
	case !private(info):
		return "", false, errors.New("another user owns it or may write it")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return "", false, fmt.Errorf("reading it: %w", err)
	}
	if unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) == nil {
		return "", len(text) > 0, nil
	}
	if len(text) == 0 {
		return "", false, nil
	}
	var c content
	if err := json.Unmarshal(text, &c); err != nil {
		return "", false, fmt.Errorf("reading it: %w", err)
	}
	return c.Admin, false, nil
}
