// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/holdgate/holdgate/internal/regular"
)

// stream is a sink that is not rotated: standard output.
type stream struct{ io.Writer }

func (stream) Reopen() error { return nil }
func (stream) Torn() bool    { return false }
func (stream) Close() error  { return nil }

// file is a sink that is rotated by its size. New files have mode 0600.
type file struct {
	*lumberjack.Logger

	mu     sync.Mutex // guards the fields below
	closed bool
	torn   bool // the file ended in an incomplete line when it was opened
}

func openFile(path string, o Options) (*file, error) {
	if o.MaxMiB == 0 {
		o.MaxMiB = defaultMaxMiB
	}
	// A rotation renames the path, so a link must be resolved first.
	at, err := regular.Resolve(path)
	if err != nil {
		return nil, err
	}
	f := &file{Logger: &lumberjack.Logger{Filename: at, MaxSize: o.MaxMiB, MaxBackups: o.Backups}}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

// open makes lumberjack open its file, which it would otherwise do at the first line. It
// checks the path before, because lumberjack renames what it cannot open, such as a directory.
func (f *file) open() error {
	if err := Check(f.Filename); err != nil {
		return err
	}
	torn, err := endsTorn(f.Filename)
	if err != nil {
		return err
	}
	f.torn = torn
	_, err = f.Write(nil)
	return err
}

// endsTorn reports whether a file ends in an incomplete line.
func endsTorn(path string) (bool, error) {
	f, err := os.Open(path) //nolint:gosec // the operator names the file
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return false, err
	}
	last := make([]byte, 1)
	_, err = f.ReadAt(last, end-1)
	return last[0] != '\n', err
}

// Torn implements sink.
func (f *file) Torn() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.torn
}

// Check returns an error if path cannot be an audit file. It creates nothing.
func Check(path string) error {
	if path == "-" {
		return nil
	}
	return regular.Check(path)
}

// Reopen implements sink.
func (f *file) Reopen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	err := f.Logger.Close()
	return errors.Join(err, f.open())
}

// Close implements sink.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return f.Logger.Close()
}
