// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"gopkg.in/natefinch/lumberjack.v2"
)

// stream is stdout: it has no size and no other name.
type stream struct{ io.Writer }

func (stream) Reopen() error { return nil }
func (stream) Close() error  { return nil }

// file is a file that is rotated by its size. A file that is made has mode 0600.
type file struct {
	*lumberjack.Logger

	mu     sync.Mutex // of Reopen and Close
	closed bool
}

func openFile(path string, o Options) (*file, error) {
	if o.MaxMiB == 0 {
		o.MaxMiB = defaultMaxMiB
	}
	f := &file{Logger: &lumberjack.Logger{Filename: path, MaxSize: o.MaxMiB, MaxBackups: o.Backups}}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

// open has the library open its file, which it would do at the first line. It
// would move away what cannot be opened as a file, such as a directory.
func (f *file) open() error {
	if err := Check(f.Filename); err != nil {
		return err
	}
	_, err := f.Write(nil)
	return err
}

// Check says why a path cannot be that of an audit file, and makes nothing.
func Check(path string) error {
	if path == "-" {
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// Reopen is part of sink.
func (f *file) Reopen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	err := f.Logger.Close()
	return errors.Join(err, f.open())
}

// Close is part of sink.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return f.Logger.Close()
}
