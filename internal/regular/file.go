// SPDX-License-Identifier: Apache-2.0

// Package regular reads and writes only regular files: a device, a pipe or a directory at a
// configured path is an error and is not touched. Symbolic links are resolved, so that the
// file changes and the link does not.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNot is the error of a path at which there is something other than a regular file.
var ErrNot = errors.New("is not a regular file")

// maxLinks is how many symbolic links are followed in a path, as in Linux.
const maxLinks = 40

// Resolve follows the symbolic links of a path, and returns the path of a regular file or one
// at which there is no file.
func Resolve(path string) (string, error) {
	at := path
	for range maxLinks {
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return at, nil
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			return at, checkRegular(at, info, adviceToWrite)
		}
		target, err := os.Readlink(at)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(target) {
			// Not filepath.Join: it would remove ".." lexically, which is wrong after a link to
			// a directory.
			target = filepath.Dir(at) + "/" + target
		}
		at = target
	}
	return "", fmt.Errorf("%s: %w", path, unix.ELOOP)
}

// Check returns an error if there is something other than a regular file at path. It creates
// nothing.
func Check(path string) error {
	_, err := Resolve(path)
	return err
}

const (
	adviceToRead  = "name a regular file"
	adviceToWrite = "name a regular file, or one that is not there yet"
)

func checkRegular(path string, info fs.FileInfo, advice string) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("%s %w but %s: %s", path, ErrNot, kind(info.Mode()), advice)
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}

// Read returns at most limit bytes of a file, and its metadata before it was read. The system
// follows its links, because one below /dev/fd may lead to a file without a path.
func Read(path string, limit int64) ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	at := path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		at = target // for the error
	}
	if err := checkRegular(at, info, adviceToRead); err != nil {
		return nil, nil, err
	}
	f, err := open(path, os.O_RDONLY, adviceToRead)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	return data, info, err
}

// Append opens a file for appending. If there is none, it creates one with mode 0600.
func Append(path string) (*os.File, error) {
	return write(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND)
}

// Create opens a file for writing and truncates it. If there is none, it creates one with
// mode 0600.
func Create(path string) (*os.File, error) {
	return write(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC)
}

// write opens a file to write. It does not follow a link that was created after the path
// was resolved.
func write(path string, flags int) (*os.File, error) {
	at, err := Resolve(path)
	if err != nil {
		return nil, err
	}
	return open(at, flags|unix.O_NOFOLLOW, adviceToWrite)
}

// open opens a regular file. It does not wait for the other end of a pipe.
func open(at string, flags int, advice string) (*os.File, error) {
	f, err := os.OpenFile(at, flags|unix.O_NONBLOCK, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = checkRegular(at, info, advice)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Write replaces a file atomically: after a crash there is either the old or the new one. The
// name of the temporary file cannot be guessed.
func Write(path string, data []byte, mode fs.FileMode) error {
	at, err := Resolve(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(at)
	tmp, err := os.CreateTemp(dir, filepath.Base(at)+".tmp-*")
	if err != nil {
		return err
	}
	err = writeAndSync(tmp, data, mode)
	if err == nil {
		err = os.Rename(tmp.Name(), at)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return syncDir(dir)
}

func writeAndSync(tmp *os.File, data []byte, mode fs.FileMode) error {
	_, err := tmp.Write(data)
	if err == nil {
		err = tmp.Chmod(mode)
	}
	if err == nil {
		err = tmp.Sync()
	}
	return errors.Join(err, tmp.Close())
}

// syncDir makes the rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the directory of a file that the operator names
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
